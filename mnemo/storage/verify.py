"""Verify everything in a run, an export, a corpus or a memory file against its checksums, and list what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnemo.data.corpus import HEADER, Corpus
from mnemo.errors import MnemoError
from mnemo.files.json_file import verify_json
from mnemo.files.tensor_file import require_whole
from mnemo.progress import Advance, ShowProgress, silent
from mnemo.storage import run_folder
from mnemo.storage.checkpoint import PROGRESS, checkpoint_path, checkpoint_steps, load_checkpoint
from mnemo.storage.overrides import OVERRIDES
from mnemo.storage.run_folder import BEST, EXPORT
from mnemo.storage.run_header import RECIPE, RUNS, TOKENIZER, load_header
from mnemo.storage.run_tokenizer import load_tokenizer
from mnemo.storage.verify_target import find_target


@dataclass
class Verified:
    """The outcome for one run, export, corpus or file."""

    kind: str
    path: Path
    verified: set[Path] = field(default_factory=set)
    """Files whose content matches a checksum."""
    unchecked: list[str] = field(default_factory=list)
    """Files of earlier versions, which have no checksum; only their form was checked."""
    problems: list[str] = field(default_factory=list)

    def check(self, path: Path, work: Callable[[], bool]) -> None:
        """Check one file by `work`, which returns whether the file has a checksum; its MnemoError is a problem."""
        try:
            has_checksum = work()
        except MnemoError as error:
            self.add(str(error))
            return
        if has_checksum:
            self.verified.add(path)
        else:
            self.unchecked.append(str(path))

    def require(self, work: Callable[[], object]) -> None:
        """Check something that is no single file; a MnemoError of `work` is a problem."""
        try:
            work()
        except MnemoError as error:
            self.add(str(error))

    def add(self, problem: str) -> None:
        """Several checks may find the same problem."""
        if problem not in self.problems:
            self.problems.append(problem)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": str(self.path),
            "whole": not self.problems,
            "files": len(self.verified),
            "unchecked": self.unchecked,
            "problems": self.problems,
        }


def verify(target: str | Path, *, runs: Path = RUNS, show: ShowProgress = silent) -> Verified:
    """Verify a run or an export (folder, or name under `runs`), a corpus (folder or name) or a memory file.

    Names of models that come with the package are known as well.
    """
    path = find_target(target, runs)
    if (path / HEADER).is_file():
        return _verify_corpus(path, show)
    return _verify_run(path, show) if (path / RECIPE).is_file() else _verify_file(path, show)


def _verify_file(path: Path, show: ShowProgress) -> Verified:
    found = Verified("file", path)
    with show(f"verifying {path}", path.stat().st_size, unit="B") as bar:
        is_json = path.suffix == ".json"
        found.check(path, lambda: verify_json(path) if is_json else require_whole(path, bar=bar))
    return found


def _verify_corpus(path: Path, show: ShowProgress) -> Verified:
    found = Verified("corpus", path)
    found.check(path / HEADER, lambda: verify_json(path / HEADER))
    try:
        corpus = Corpus.open(path)
        with show(f"verifying {path}", sum(file.stat().st_size for file in corpus.files()), unit="B") as bar:
            problems = corpus.problems(bar)
    except MnemoError as error:
        problems = [str(error)]
    else:
        found.verified |= set(corpus.files()) if not problems else set()
    for problem in problems:
        found.add(problem)
    return found


def _verify_run(path: Path, show: ShowProgress) -> Verified:
    exported = (path / EXPORT).is_file()
    found = Verified("export" if exported else "run", path)
    checkpoints = [path] if exported else [checkpoint_path(path, step) for step in checkpoint_steps(path)]
    _check_descriptions(found, path)
    total = sum(file.stat().st_size for folder in checkpoints for file in folder.glob("*.safetensors"))
    with show(f"verifying {path}", total, unit="B") as bar:
        for folder in checkpoints:
            _check_checkpoint(found, path, folder, exported, bar)
    if not exported and not checkpoints:
        found.add(f"{path} has no checkpoint")
    return found


def _check_descriptions(found: Verified, path: Path) -> None:
    """Check the JSON files of a run, those with results included."""
    found.check(path / RECIPE, lambda: bool(load_header(path)) and verify_json(path / RECIPE))
    if (path / TOKENIZER).exists():
        found.check(path / TOKENIZER, lambda: bool(load_tokenizer(path)) and verify_json(path / TOKENIZER))
    elif (path / RECIPE).exists():
        found.require(lambda: load_tokenizer(path))
    if (path / BEST).exists():
        found.check(path / BEST, lambda: _verify_best(path))
    for file in (*sorted(path.glob(OVERRIDES)), *sorted(path.glob("results/*.json"))):
        found.check(file, lambda file=file: verify_json(file))


def _verify_best(path: Path) -> bool:
    step = run_folder.best_step(path)
    if step not in checkpoint_steps(path):
        raise MnemoError(f"{path / BEST} names step {step}, which has no checkpoint")
    return verify_json(path / BEST)


def _check_checkpoint(found: Verified, run: Path, folder: Path, exported: bool, bar: Advance) -> None:
    try:
        checkpoint = run_folder.exported(run) if exported else load_checkpoint(folder)
        assert checkpoint is not None
    except MnemoError as error:
        found.add(str(error))
        return
    description = folder / (EXPORT if exported else PROGRESS)
    found.check(description, lambda: verify_json(description))
    for name in sorted(checkpoint.progress["files"]):
        path, expected = folder / name, checkpoint.checksums.get(name)
        found.check(path, lambda path=path, expected=expected: require_whole(path, expected, bar))
    if not exported:
        found.require(checkpoint.require_overrides)
    for name in checkpoint.logs:
        found.check(run / name, lambda name=name: checkpoint.require_log(name))
