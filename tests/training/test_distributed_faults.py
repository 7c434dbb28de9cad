"""What goes wrong with one process is said by all in one line, and leaves the last checkpoint whole."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.toy_runs import exact, metrics, recipe, run

from mnemo.data.streams import Batch, Cursor, Stream
from mnemo.errors import MnemoError
from mnemo.memory.state import leaves
from mnemo.recipes.recipe import Recipe
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.training import Diverged, Unwatched, create_run, engine, train, update_guard
from mnemo.training.data import open_data
from mnemo.training.launch import ReportedByMain
from mnemo.training.processes import joined

STEPS: dict[str, Any] = {
    "batch": 4,
    "steps": 4,
    "checkpoint_every": 2,
    "eval_every": 4,
    "log_every": 1,
    "device": "cpu",
}


class Failing:
    """A stream that does something at one step of the first epoch."""

    def __init__(self, stream: Stream, step: int, deed: Any) -> None:
        self._stream, self._step, self._deed = stream, step, deed

    def start(self) -> Cursor:
        return self._stream.start()

    def read(self, cursor: Cursor) -> tuple[Batch | None, Cursor]:
        if cursor["step"] == self._step:
            self._deed()
        return self._stream.read(cursor)


def is_second() -> bool:
    return os.environ["RANK"] == "1"


def with_fault(folder: Path, wanted: Recipe, fault: str, timeout: float) -> Any:
    """Train in two processes, the second of which fails after the checkpoint of step 2."""
    deeds = {"hangs": lambda: time.sleep(1.5 * timeout), "dies": lambda: os.kill(os.getpid(), signal.SIGKILL)}
    data = open_data(wanted)
    if is_second() and fault in deeds:
        data = replace(data, stream=Failing(data.stream, 3, deeds[fault]))
    if is_second() and fault == "disk":
        fill_disk_after(2)
    begin = time.monotonic()
    try:
        with joined("cpu", timeout) as world:
            world.main(lambda: None if folder.exists() else str(create_run(wanted, folder)))
            return train(folder, data=data, world=world).step
    except MnemoError as error:
        assert time.monotonic() - begin < 60
        return f"{type(error).__name__}: {error}"


def fill_disk_after(count: int) -> None:
    """Writing a checkpoint fails after some checkpoints."""
    real, left = os.fsync, [count]

    def fsync(file: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    os.fsync = fsync


@pytest.mark.thorough
def test_a_process_that_hangs_is_given_up(tmp_path: Path) -> None:
    wanted = recipe(**STEPS)
    first, second = ranks.run(2, with_fault, tmp_path / "run", wanted, "hangs", 6.0)
    assert "has not answered for 6 s (--train.timeout)" in first and "--resume" in first
    assert second.startswith("RankError: rank 1: another process of this job")
    assert checkpoints.checkpoint_steps(tmp_path / "run") == [0, 2]
    assert ranks.run(2, with_fault, tmp_path / "run", wanted, "none", 30.0) == [4, 4]


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    processes = ranks.start(2, with_fault, tmp_path / "run", recipe(**STEPS), "dies", 30.0)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    assert checkpoints.checkpoint_steps(tmp_path / "run") == [0, 2]


def test_a_full_disk_is_everyones(tmp_path: Path) -> None:
    wanted = recipe(**exact(**STEPS))
    first, second = ranks.run(2, with_fault, tmp_path / "run", wanted, "disk", 30.0)
    assert "cannot save" in first and "No space left on device; what was saved before stays whole" in first
    assert second.startswith("ReportedByMain: ")
    found, problems = checkpoints.last_whole_checkpoint(tmp_path / "run")
    assert (found and found.step, problems) == (2, [])
    assert list((tmp_path / "run" / "checkpoints").glob(".tmp-*")) == []


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """By a limit on the size of files, which the kernel enforces."""
    wanted = recipe({"dim": 64}, **STEPS)
    (message,) = ranks.run(1, with_small_files, tmp_path / "run", wanted)
    assert "cannot save" in message and "what was saved before stays whole" in message
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def with_small_files(folder: Path, wanted: Recipe) -> str:
    import resource

    create_run(wanted, folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    with pytest.raises(MnemoError) as caught:
        train(folder)
    return str(caught.value)


class Notes(Unwatched):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def damage_and_resume(folder: Path, wanted: Recipe) -> list[str]:
    """Two processes train, a file of the last checkpoint is cut, and they go on from the one before."""
    notes = Notes()
    with joined("cpu", 30) as world:
        world.main(lambda: str(create_run(wanted, folder)))
        train(folder, world=world)
        world.main(lambda: cut_last(folder))
        train(folder, monitor=notes, world=world)
    return notes.lines


def cut_last(folder: Path) -> None:
    last = checkpoints.checkpoint_path(folder, checkpoints.checkpoint_steps(folder)[-1])
    path = sorted(last.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:-8])


def test_a_cut_file_is_passed_over_for_the_last_whole_checkpoint(tmp_path: Path) -> None:
    wanted = recipe(**{**STEPS, "steps": 3})
    lines, _ = ranks.run(2, damage_and_resume, tmp_path / "run", wanted)
    assert any("is truncated" in line and "continuing from an earlier checkpoint" in line for line in lines)
    assert "continuing after step 2" in lines
    run(tmp_path / "first", of=wanted)
    assert metrics(tmp_path / "run").count(b"\n") == metrics(tmp_path / "first").count(b"\n")


class Poisoned:
    """A loss that is wrong in some calls, as a batch of bad data would make it."""

    def __init__(self, calls: dict[int, float]) -> None:
        self.calls, self.count, self.real = calls, 0, engine.segment_loss

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.count += 1
        nll, z, aux, state = self.real(*args, **options)
        factor = self.calls.get(self.count, 1.0)
        state = type(state)(_poison(leaf, factor) for leaf in state) if factor != 1.0 else state
        return None if nll is None else nll * factor, z, aux, state


def _poison(stage: Any, factor: float) -> Any:
    return stage._replace(**{name: leaf * factor for name, leaf in leaves(stage) if leaf.is_floating_point()})


def test_bad_batches_are_passed_over_by_weights_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(**exact(steps=6, on_nan="skip", spike=3.0, log_every=1, eval_every=6, checkpoint_every=2))
    monkeypatch.setattr(engine, "segment_loss", Poisoned({3: float("nan"), 5: 10.0}))
    notes = Notes()
    outcome = run(tmp_path / "run", of=wanted, monitor=notes)
    assert outcome.step == 6
    skips = [line for line in notes.lines if "is skipped" in line]
    assert [line.partition(":")[0] for line in skips] == ["step 3 is skipped", "step 5 is skipped"]
    assert skips[0].endswith("(not finite)")
    assert re.search(r"\([\d.]+ times the usual loss of [\d.]+: --train.spike 3\)$", skips[1])
    lines = metrics(tmp_path / "run").decode().splitlines()
    assert [line.count('"skipped": 2') for line in lines if '"step": 6, "split": "train"' in line] == [1]
    end = run_folder.last_checkpoint(tmp_path / "run")
    assert end is not None and (end.progress["skipped"], end.progress["in_a_row"]) == (2, 0)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in end.tensors("memory").values())


def test_an_interval_of_skipped_steps_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "segment_loss", Poisoned(dict.fromkeys((3, 4), float("nan"))))
    notes = Notes()
    run(tmp_path / "run", of=recipe(steps=4, on_nan="skip"), monitor=notes)
    written = [json.loads(line) for line in metrics(tmp_path / "run").splitlines()]
    (logged,) = [line for line in written if line["step"] == 4 and line["split"] == "train"]
    assert (logged["loss"], logged["grad_norm"], logged["skipped"]) == (None, None, 2)
    assert "step 4/4  nothing learned since the last line: 2 steps skipped so far" in notes.lines


def test_a_run_may_stop_at_a_spike_before_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "segment_loss", Poisoned({4: 10.0}))
    with pytest.raises(Diverged, match="at step 4; training stops, .* keeps the checkpoint of step 3"):
        run(tmp_path / "run", of=recipe(on_nan="stop", spike=2.0))


def test_a_run_that_only_skips_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "segment_loss", Poisoned(dict.fromkeys(range(100), float("nan"))))
    monkeypatch.setattr(update_guard, "MOST_SKIPPED", 5)
    with pytest.raises(Diverged, match="step 5"):
        run(tmp_path / "run", of=recipe(on_nan="skip"))


def skip_together(folder: Path, wanted: Recipe) -> int:
    if is_second():
        engine.segment_loss = Poisoned({2: float("nan")})
    with joined("cpu", 30) as world:
        world.main(lambda: str(create_run(wanted, folder)))
        train(folder, world=world)
    end = run_folder.last_checkpoint(folder)
    return end.progress["skipped"] if end else -1


def test_all_processes_skip_what_one_cannot_use(tmp_path: Path) -> None:
    wanted = recipe(**exact(**{**STEPS, "steps": 3, "on_nan": "skip"}))
    assert ranks.run(2, skip_together, tmp_path / "run", wanted) == [1, 1]


def test_too_few_rows_are_refused_once(tmp_path: Path) -> None:
    first, second = ranks.run(2, with_fault, tmp_path / "run", recipe(**{**STEPS, "accumulate": 3}), "none", 30.0)
    assert first == "MnemoError: 4 rows are too few for 2 processes in 3 parts: each needs one or more"
    assert second.startswith(ReportedByMain.__name__)


def test_a_run_in_use_is_refused_to_all_processes(tmp_path: Path) -> None:
    create_run(recipe(**STEPS), tmp_path / "run")
    with run_folder.locked(tmp_path / "run"):
        first, second = ranks.run(2, with_fault, tmp_path / "run", recipe(**STEPS), "none", 30.0)
    assert first == f"InUse: {tmp_path / 'run'} is in use by another process"
    assert second.startswith(ReportedByMain.__name__)
