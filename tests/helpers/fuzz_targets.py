"""What the fuzz tests break, and the commands that must survive it: seeds, targets, and one try of one of them."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import shutil
import signal
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.edited_files import edit_json, remove_checksums
from helpers.tiny_runs import MODEL, SEGMENT, sample_text

import mnemo.model.memory_limits
from mnemo import cli
from mnemo.config import to_json
from mnemo.data.known_corpora import Option
from mnemo.data.prepare import prepare
from mnemo.errors import MnemoError
from mnemo.memory import LSTM, Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.model import ModelConfig
from mnemo.model.positions import NoPositions
from mnemo.recipes.recipe import AverageConfig, DataConfig, EvalConfig, Recipe, TrainConfig
from mnemo.storage.run_header import load_header
from mnemo.training import create_run, train
from mnemo.training.trainer import Trainer

GOLDEN = Path(__file__).parents[1] / "golden"
SECONDS = 20
"""Of computing: a try that takes longer hangs."""
PATIENCE = 300
"""Seconds that it may take besides, waiting for others on a busy machine."""
SMALL_MACHINE = 256 * 2**20
"""What the package believes this machine to have, so that no try may take more."""
HEADROOM = 2 * 2**30
"""Address space that a try may take besides what the process has: enough for threads and libraries."""
CHECKPOINT = "run/checkpoints/step-00000002"


class Target(NamedTuple):
    name: str
    file: str
    """The file that is broken, in the folder of seeds."""
    argv: tuple[str, ...]


class Tried(NamedTuple):
    code: int
    out: str
    err: str

    def problem(self) -> str | None:
        """Why this is no decent end of a command; None where it is."""
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}: {self.err.strip()[-300:]}"
        if "Traceback" in self.err or "internal error" in self.err:
            return f"a traceback or internal error: {self.err.strip()[-300:]}"
        said = [line for line in self.err.splitlines() if line.startswith("mnemo: error")]
        if self.code == 2 and len(said) != 1:
            return f"{len(said)} error lines: {self.err.strip()[-300:]}"
        return None


class Hang(BaseException):
    """No Exception, so that nothing in the package takes it for an error of its own."""


@functools.cache
def seeds() -> Path:
    """A folder with a run of every tokenizer, a memory, results, texts, archives and reference files."""
    folder = Path(tempfile.mkdtemp(prefix="mnemo-fuzz-"))
    (folder / "text.txt").write_text(sample_text(16), encoding="utf-8")
    (folder / "note.txt").write_text(sample_text(1), encoding="utf-8")
    before = {name: os.environ[name] for name in ("MNEMO_DATA",) if name in os.environ}
    os.environ["MNEMO_DATA"] = str(folder / "data")
    _train(folder, "run", "bytes", MODEL)
    words = replace(MODEL, memory=Plan(long=Lookahead(length=4)), tokens=MemoryTokens(num=2))
    _train(folder, "words", "words", words)
    _train(folder, "bpe", "bpe", replace(MODEL, memory=Plan(long=Compressive(length=4, compressed=4, ratio=2))))
    infinite = Infinite(length=4, basis=8, block=4, samples=4)
    _train(folder, "chars", "chars", replace(MODEL, memory=Plan(long=infinite)))
    lstm = replace(MODEL, memory=Plan(long=LSTM()), positions=NoPositions())
    _train(folder, "lstm", "bytes", lstm)
    for name in ("run", "words", "bpe", "chars"):
        _must(["read", str(folder / name), str(folder / "note.txt"), "--save", str(folder / f"{name}.memory")])
    run = str(folder / "run")
    _must(["eval", run, "--limit", "64", "--sweep-memory", "0,4"])
    _must(["eval", run, "--limit", "64", "--by-position"])
    _must(["generate", run, "--tokens", "4"])
    case = {"case": "train", "segment": 256, "memory": 256, "batch": 4, "mnemo": {"tokens_per_second": 1e6}}
    (folder / "bench.json").write_text(json.dumps({"machine": {"name": "a GPU"}, "cases": [case]}))
    _pack(folder)
    remove_checksums(folder)  # with them, damaged files would be refused before their content is looked at
    for path in sorted(GOLDEN.rglob("*.safetensors")):
        if path.relative_to(GOLDEN).parts[0] not in ("transfo-xl-4.30", "armt-hf"):  # no reference files of `parity`
            shutil.copy(path, folder / path.name)
    os.environ.update(before)
    return folder


def _must(argv: list[str]) -> None:
    tried = attempt(argv)
    assert tried.code == 0, (argv, tried.err)


def _train(folder: Path, name: str, tokenizer: Option, model: ModelConfig) -> None:
    corpus = prepare(
        f"corpus-{tokenizer}", folder / "text.txt", tokenizer, vocab_size=300 if tokenizer == "bpe" else None
    )
    average = AverageConfig(start=1) if name == "run" else None
    recipe = Recipe(
        model=model,
        data=DataConfig(corpus=corpus.name),
        train=TrainConfig(steps=2, batch=2, segment=SEGMENT, checkpoint_every=2, device="cpu", average=average),
        evaluation=EvalConfig(batch=2, limit=64),
        test=EvalConfig(batch=2, limit=64),
    )
    train(create_run(recipe, folder / name))
    # With steps left, so that a run that is resumed also trains.
    longer = load_header(folder / name).recipe
    longer = to_json(replace(longer, train=replace(longer.train, steps=9)))
    edit_json(folder / name / "recipe.json", lambda header: header.update(recipe=longer))


def _pack(folder: Path) -> None:
    text = folder / "text.txt"
    with zipfile.ZipFile(folder / "text.zip", "w") as archive:
        archive.write(text, "train.txt")
        archive.write(text, "valid.txt")
    with tarfile.open(folder / "text.tar.gz", "w:gz") as archive:
        archive.add(text, "text.txt")


def targets() -> list[Target]:
    """Every kind of file that a command reads, with that command."""
    found = []
    for name in ("run", "words", "bpe", "chars", "lstm"):
        found += [Target("info", f"{name}/recipe.json", ("info", name))]
        found += [Target("generate", f"{name}/{file}", _generate(name)) for file in ("recipe.json", "tokenizer.json")]
    for file in (
        "recipe.json",
        "best.json",
        *_checkpoint("progress.json", "weights.safetensors", "training.safetensors"),
    ):
        found.append(Target("eval", f"run/{file}", ("eval", "run", "--limit", "32")))
    for file in ("header.json", "valid.bin", "valid.documents.bin"):
        found.append(
            Target("eval", f"data/corpus-bytes/{file}", ("eval", "run", "--limit", "32", "--documents", "reset"))
        )
    for name in ("words", "bpe", "chars"):
        found.append(Target("eval", f"data/corpus-{name}/header.json", ("eval", name, "--limit", "32")))
    for name in ("run", "words", "bpe", "chars"):
        found.append(Target("generate --memory", f"{name}.memory", (*_generate(name), "--memory", f"{name}.memory")))
        found.append(Target("read", "note.txt", ("read", name, "note.txt")))
    found.append(Target("generate --prompt-file", "note.txt", (*_generate("run"), "--prompt-file", "note.txt")))
    files = ("recipe.json", "metrics.jsonl", *_checkpoint(*(f"{part}.safetensors" for part in ("training", "memory"))))
    for file in (*files, *_checkpoint("progress.json", "weights.safetensors")):
        found.append(Target("train --resume", f"run/{file}", ("train", "--resume", "run")))
    for name in ("words", "chars"):
        for file in ("memory.safetensors", "progress.json"):
            found.append(Target("train --resume", f"{name}/{_checkpoint(file)[0]}", ("train", "--resume", name)))
    results = sorted(path.name for path in (seeds() / "run" / "results").glob("*.json"))
    for file in ("recipe.json", "metrics.jsonl", "timing.jsonl", *(f"results/{name}" for name in results)):
        found.append(Target("report", f"run/{file}", ("report", "run", "--out", "page.html")))
    found.append(Target("estimate --bench", "bench.json", ("estimate", "run", "--bench", "bench.json")))
    for path in sorted(seeds().glob("*.safetensors")):
        found.append(Target("parity", path.name, ("parity", path.name)))
    for tokenizer in ("bytes", "chars", "words", "bpe"):
        found.append(Target("prepare", "text.txt", ("prepare", "new", "--from", "text.txt", "--tokenizer", tokenizer)))
    for file in ("text.zip", "text.tar.gz"):
        found.append(Target("prepare", file, ("prepare", "new", "--from", file)))
    return found


def _checkpoint(*files: str) -> list[str]:
    return [f"checkpoints/step-00000002/{file}" for file in files]


def _generate(run: str) -> tuple[str, ...]:
    return ("generate", run, "--tokens", "2", "--no-save")


@contextlib.contextmanager
def workplace(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the seeds to work in, on a machine that is said to be small, where training stops after a step."""
    original, folder = seeds(), Path(tempfile.mkdtemp(prefix="mnemo-fuzzing-"))
    shutil.copytree(original, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MNEMO_DATA", str(folder / "data"))
    monkeypatch.delenv("MNEMO_TRACEBACK", raising=False)
    monkeypatch.setattr(mnemo.model.memory_limits, "memory_bytes", lambda device: SMALL_MACHINE)
    advance = Trainer._advance

    def only_once(trainer: Any) -> None:
        if "fuzzed" in vars(trainer):
            raise MnemoError("one step is enough")
        trainer.fuzzed = True
        advance(trainer)

    monkeypatch.setattr(Trainer, "_advance", only_once)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attempt_target(folder: Path, target: Target, data: bytes) -> Tried:
    """Run the target's command on the broken file; the folder is whole again afterwards."""
    path = folder / target.file
    _write(path, data)
    try:
        return attempt(list(target.argv))
    finally:
        for part in ("run", "words", "chars") if target.name == "train --resume" else ():
            shutil.rmtree(folder / part)
            shutil.copytree(seeds() / part, folder / part)
        shutil.rmtree(folder / "data" / "new", ignore_errors=True)
        _write(path, (seeds() / target.file).read_bytes())


def _write(path: Path, data: bytes) -> None:
    """A new file: one that is still mapped into memory must not change its length."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def attempt(argv: list[str]) -> Tried:
    """The command's end, within the limits of time and memory."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), limited():
        code = cli.main(argv)
    return Tried(code, out.getvalue(), err.getvalue())


def _stop(number: int, frame: object) -> None:
    raise Hang(f"more than {SECONDS} seconds of computing" if number == signal.SIGPROF else "it waits for ever")


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """An alarm after a while, and no more address space than a little above what is taken already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE)}
    before = {number: signal.signal(number, _stop) for number in clocks}
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds)
    with contextlib.suppress(FileNotFoundError):  # where the system tells
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + HEADROOM, hard))
    try:
        yield
    finally:
        for number, (clock, _) in clocks.items():
            signal.setitimer(clock, 0)
            signal.signal(number, before[number])
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
