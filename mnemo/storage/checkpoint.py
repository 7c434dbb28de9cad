"""Checkpoints of a run: safetensors files for tensors and `progress.json` for everything else.

    checkpoints/step-00000200/   weights, training (optimizer, averages, generators) and memory: .safetensors
                                 (several processes: shard-*.safetensors, with the same tensors)
                                 progress.json: step, id of the run, cursors, counters, and the sizes and checksums
                                 of the other files

A checkpoint is written under a temporary name, flushed to the disk and then renamed: under its name it is complete.
The checksums of its tensors are verified when they are loaded, and before a run resumes from it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from mnemo.errors import MnemoError, shorten
from mnemo.files import atomic, checksum
from mnemo.files.json_file import load_json, write_json
from mnemo.files.safe_load import is_count, require, tensors_problem
from mnemo.files.tensor_file import Tensors, load_tensors, require_whole, stored_checksum, write_tensors
from mnemo.progress import Advance
from mnemo.storage import run_identity
from mnemo.storage import sharded as shards
from mnemo.storage.overrides import OVERRIDES, load_overrides

PROGRESS, CHECKPOINTS, STEP_PREFIX = "progress.json", "checkpoints", "step-"
PARTS = ("weights", "training", "memory")
LOGS = ("metrics.jsonl", "timing.jsonl")
Reason = Literal["interval", "best", "end", "signal", "clock"]
"""Why a checkpoint was saved: a multiple of the step interval, the lowest validation loss so far, the last step of the
run, a signal that stops the run, or the time since the last checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    progress: dict[str, Any]

    @property
    def step(self) -> int:
        return self.progress["step"]

    @property
    def reason(self) -> Reason:
        """Why it was saved; checkpoints of version 0.1.0 count as saved at step intervals."""
        return self.progress.get("reason", "interval")

    @property
    def num_ranks(self) -> int:
        """Number of processes that wrote it."""
        return self.progress.get("ranks", 1)

    @property
    def is_sharded(self) -> bool:
        return "ranks" in self.progress

    def file(self, part: str) -> Path:
        return self.path if self.is_sharded else self.path / f"{part}.safetensors"

    def layout(self, part: str) -> dict[str, shards.Stored]:
        return {name: stored for name, stored in shards.layout(self.path).items() if part_of(name) == part}

    @property
    def checksums(self) -> dict[str, str]:
        """The checksum of each tensor file; none in checkpoints of earlier versions."""
        return self.progress.get("checksums", {})

    @property
    def evaluated_files(self) -> list[str]:
        """Names of the files that hold the weights as they are evaluated."""
        if self.is_sharded:
            return sorted(self.progress["files"])
        parts = ("weights", "training") if self.progress["average_count"] else ("weights",)
        return [f"{part}.safetensors" for part in parts]

    def verify(self, names: Iterable[str] | None = None, bar: Advance | None = None) -> None:
        """Raise MnemoError if one of the files, by default any file, is not the one that was saved."""
        if not self.checksums:
            checksum.note_unchecked(self.path, "checkpoint")
        for name in sorted(self.progress.get("files", ())) if names is None else names:
            require_whole(self.path / name, self.checksums.get(name), bar)

    @property
    def logs(self) -> dict[str, str]:
        """The checksum of each file of numbers, such as metrics.jsonl, as long as it was at this step."""
        return self.progress.get("logs", {})

    def has_log(self, name: str) -> bool:
        """Whether a file of numbers is at least as long as it was at this step."""
        path = run_of(self.path) / name
        return path.is_file() and path.stat().st_size >= self.progress[_size_field(name)]

    def require_log(self, name: str) -> bool:
        """Raise MnemoError if the lines of a file of numbers up to this step are not those that were written."""
        path, size = run_of(self.path) / name, self.progress[_size_field(name)]
        if not self.has_log(name):
            raise MnemoError(f"{path} has lost lines that were written before {self.path.name}")
        if checksum.of_file(path, size) != self.logs[name]:
            raise MnemoError(f"{path} has changed in its first {size:,} bytes since {self.path.name} was saved")
        return True

    def require_overrides(self) -> None:
        """Raise MnemoError if changes of the recipe that were in force at this step are lost.

        A change at this step counts as their replacement: it was given when they were missing.
        """
        path, known = run_of(self.path) / OVERRIDES, self.progress.get("overrides", 0)
        found = load_overrides(path.parent)
        if len(found) < known and not any(each.step >= self.step for each in found):
            lost = f"{known - len(found):,} of the {known:,} changes before {self.path.name}"
            remedy = "restore it, or give the changed options again (--train.NAME VALUE)"
            raise MnemoError(f"{path} has lost {lost}: {remedy}")

    def tensors(self, part: str, prefix: str = "") -> dict[str, Tensor]:
        """Load the tensors of a part whose names begin with `prefix`, from files whose checksums are verified."""
        if not self.is_sharded:
            self.verify([self.file(part).name])
            return load_tensors(self.file(part), prefix)
        self.verify()
        wanted = {name: stored for name, stored in self.layout(part).items() if name.startswith(prefix)}
        return shards.read(self.path, wanted)


def part_of(name: str) -> str:
    """The part of a checkpoint that a tensor belongs to."""
    first, slash, _ = name.partition("/")
    if first.isdecimal():
        return "memory"
    return "training" if slash and first in ("optimizer", "average", "rng") else "weights"


def evaluated_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The averaged weights if there are any, else the trained ones."""
    weights = checkpoint.tensors("weights")
    if checkpoint.progress.get("half"):
        weights = {name: weight.float() for name, weight in weights.items()}
    if not checkpoint.progress["average_count"]:
        return weights
    averages = checkpoint.tensors("training", "average/")
    return weights | {name.removeprefix("average/"): tensor for name, tensor in averages.items()}


def save_checkpoint(folder: Path, progress: dict[str, Any], parts: Mapping[str, Tensors]) -> Path:
    """Write the checkpoint of `progress["step"]`; if that fails, earlier ones are unchanged."""
    target = checkpoint_path(folder, progress["step"])
    # A whole checkpoint is never written twice, so an existing one is damaged and can be replaced.
    with saving(target), atomic.new_folder(target, replace=True) as partial:
        for part, tensors in parts.items():
            write_tensors(partial / f"{part}.safetensors", tensors)
        checksums = {path.name: stored_checksum(path) for path in partial.iterdir()}
        _write_progress(partial, target, progress, checksums)
    return target


def begin_checkpoint(target: Path) -> Path:
    """Create the temporary folder in which several processes write a checkpoint."""
    with saving(target):
        return atomic.begin_folder(target)


def commit_checkpoint(partial: Path, target: Path, progress: dict[str, Any], checksums: Mapping[str, str]) -> None:
    """Complete a checkpoint whose tensors all processes have written, and give it its name."""
    with saving(target):
        _write_progress(partial, target, progress, checksums)
        atomic.commit_folder(partial, target, replace=True)


def _write_progress(partial: Path, target: Path, progress: dict[str, Any], checksums: Mapping[str, str | None]) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
    about = {"files": sizes, "checksums": dict(sorted(checksums.items())), "logs": _log_checksums(target, progress)}
    run = run_of(target)
    changes = len(load_overrides(run))
    known = {**run_identity.of_run(run), **({"overrides": changes} if changes else {})}
    write_json(partial / PROGRESS, {**progress, **known, **about})


def _log_checksums(target: Path, progress: dict[str, Any]) -> dict[str, str]:
    """The checksums of the run's files of numbers, whose sizes are in the progress."""
    known = {name: progress[_size_field(name)] for name in LOGS if _size_field(name) in progress}
    paths = {name: run_of(target) / name for name in known}
    return {name: checksum.of_file(path, known[name]) for name, path in paths.items() if path.is_file()}


def _size_field(log: str) -> str:
    return log.replace(".jsonl", "_bytes")


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Report a failure to write, such as a full disk, in one line."""
    try:
        yield
    except OSError as error:
        raise MnemoError(f"cannot save {path}: {error.strerror or error}; what was saved before stays whole") from None


def save_progress(checkpoint: Checkpoint, progress: dict[str, Any]) -> Checkpoint:
    """Replace the progress of a checkpoint and keep its tensors."""
    names = ("files", "checksums", "ranks", "health", "overrides", run_identity.FIELD)
    kept = {name: checkpoint.progress[name] for name in names if name in checkpoint.progress}
    progress = {**progress, **kept, "logs": _log_checksums(checkpoint.path, progress)}
    with saving(checkpoint.path):
        write_json(checkpoint.path / PROGRESS, progress)
    return Checkpoint(checkpoint.path, progress)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / CHECKPOINTS / step_name(step)


def run_of(checkpoint: Path) -> Path:
    """The folder of the run that holds a checkpoint; `checkpoints` may be a link to another disk."""
    return checkpoint.parent.parent


def step_name(step: int) -> str:
    return f"{STEP_PREFIX}{step:08d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, whole or damaged, in ascending order."""
    names = (path.name.removeprefix(STEP_PREFIX) for path in (folder / CHECKPOINTS).glob(f"{STEP_PREFIX}*"))
    return sorted(int(name) for name in names if name.isdecimal())


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint's progress; check its step, its run, and that its files exist in full length.

    The content of the files is verified later, by `Checkpoint.verify` or when tensors are loaded.
    """
    _refuse_outside(path / PROGRESS)
    progress = load_json(path / PROGRESS)
    sizes, ranks, checksums = progress.get("files"), progress.get("ranks", 0), progress.get("checksums", {})
    require(
        {
            "step": is_count(progress.get("step")),
            "ranks": is_count(ranks),
            "files": isinstance(sizes, dict),
            "logs": _are_logs(progress),
            "checksums": checksums == {} or _name_the_same(checksums, sizes),
            "average_count": is_count(progress.get("average_count")),
            "overrides": is_count(progress.get("overrides", 0)),
            "reason": progress.get("reason", "interval") in get_args(Reason),
        },
        path / PROGRESS,
    )
    assert isinstance(sizes, dict)
    if path.name != step_name(progress["step"]):
        raise MnemoError(f"{path} is damaged: it holds the checkpoint of step {progress['step']}")
    run_identity.require_same(path, run_of(path), progress)
    for name in _tensor_files(path, sizes, ranks):
        file = path / name
        _refuse_outside(file)
        problem = tensors_problem(file)
        if problem is None and file.stat().st_size != sizes.get(file.name):
            problem = "is not the file that was saved"
        if problem:
            raise MnemoError(f"{file} {problem}")
    return Checkpoint(path, progress)


def _name_the_same(checksums: Any, sizes: Any) -> bool:
    return isinstance(checksums, dict) and isinstance(sizes, dict) and checksums.keys() == sizes.keys()


def _are_logs(progress: dict[str, Any]) -> bool:
    logs = progress.get("logs", {})
    return isinstance(logs, dict) and all(name in LOGS and is_count(progress.get(_size_field(name))) for name in logs)


def _refuse_outside(file: Path) -> None:
    """Refuse a link to a file outside of the run. Links of whole folders, for example to another disk, are allowed."""
    if not file.is_symlink():
        return
    target, checkpoint = os.path.realpath(file), file.parent
    homes = (checkpoint, checkpoint.parent, run_of(checkpoint))
    if not any(Path(target).is_relative_to(os.path.realpath(home)) for home in homes):
        raise MnemoError(f"{file} is a link that leads out of its run, to {shorten(target, 300)}")


def _tensor_files(path: Path, sizes: dict[str, Any], ranks: int) -> list[str]:
    """Names of the files to check: those that must exist and, of several processes, all that will be loaded."""
    if not ranks:
        return [f"{part}.safetensors" for part in PARTS]
    if not sizes or any(Path(name).name != name for name in sizes):
        raise MnemoError(f"{path / PROGRESS} is damaged: it does not name the checkpoint's files")
    return sorted({*sizes, *(file.name for file in path.glob(f"*{shards.SUFFIX}"))})


def last_whole_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that training can resume from, and the problems of newer ones."""
    problems = []
    for step in reversed(checkpoint_steps(folder)):
        try:
            found = load_checkpoint(checkpoint_path(folder, step))
            found.verify()
            return found, problems
        except MnemoError as error:
            problems.append(str(error))
    return None, problems


def remove_partial(folder: Path) -> None:
    """Remove unfinished checkpoints of killed processes."""
    for path in (folder / CHECKPOINTS).glob(f"{atomic.PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, keep: int, needed: Container[int | None]) -> None:
    """Remove all but the newest `keep` checkpoints and those of the `needed` steps.

    A checkpoint that a signal or the clock made is not counted; it is kept only while it is the newest.
    """
    steps = checkpoint_steps(folder)
    counted = [step for step in steps if _reason(folder, step) not in ("signal", "clock")]
    for step in {*steps} - {*counted[-max(1, keep) :], *steps[-1:]}:
        if step not in needed:
            atomic.remove_folder(checkpoint_path(folder, step))


def _reason(folder: Path, step: int) -> str | None:
    """Why the checkpoint of a step was saved; None if its JSON is damaged."""
    try:
        return load_json(checkpoint_path(folder, step) / PROGRESS).get("reason", "interval")
    except MnemoError:
        return None


def remove_after(folder: Path, step: int) -> None:
    """Remove all checkpoints of later steps, the newest first."""
    for later in reversed(checkpoint_steps(folder)):
        if later > step:
            atomic.remove_folder(checkpoint_path(folder, later))
