"""What goes wrong with one process is said by all in one line, and leaves the last checkpoint whole."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from toy_runs import exact, metrics, recipe, run

from mnemo import checkpoint as checkpoints
from mnemo.data.streams import Batch, Cursor, Stream
from mnemo.errors import MnemoError
from mnemo.parallel import Told, joined
from mnemo.recipe import Recipe
from mnemo.state import leaves
from mnemo.train import Diverged, Unwatched, create_run, open_data, train, trainer

STEPS = {"batch": 4, "steps": 4, "checkpoint_every": 2, "eval_every": 4, "log_every": 1}


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
    deeds = {"hangs": lambda: time.sleep(3 * timeout), "dies": lambda: os.kill(os.getpid(), signal.SIGKILL)}
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
    """Writing a checkpoint fails after so many."""
    real, left = os.fsync, [count]

    def fsync(file: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    os.fsync = fsync


def test_a_process_that_hangs_is_given_up(tmp_path: Path) -> None:
    wanted = recipe(**STEPS)
    first, second = ranks.run(2, with_fault, tmp_path / "run", wanted, "hangs", 4.0)
    assert "has not answered for 4 s (--train.timeout)" in first and "--resume" in first
    assert second.startswith("OfRank: rank 1: another process of this job")
    assert checkpoints.checkpoint_steps(tmp_path / "run") == [2]
    assert ranks.run(2, with_fault, tmp_path / "run", wanted, "none", 30.0) == [4, 4]


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    processes = ranks.start(2, with_fault, tmp_path / "run", recipe(**STEPS), "dies", 30.0)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    assert checkpoints.checkpoint_steps(tmp_path / "run") == [2]


def test_a_full_disk_is_everyones(tmp_path: Path) -> None:
    wanted = recipe(**exact(**STEPS))
    first, second = ranks.run(2, with_fault, tmp_path / "run", wanted, "disk", 30.0)
    assert "cannot save" in first and "No space left on device; what was saved before stays whole" in first
    assert second.startswith("Told: ")
    found, problems = checkpoints.last_whole_checkpoint(tmp_path / "run")
    assert (found and found.step, problems) == (2, [])
    assert list((tmp_path / "run" / "checkpoints").glob(".tmp-*")) == []
