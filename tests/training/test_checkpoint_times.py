"""Checkpoints by time and in the background: they change no number, and their failures are reported."""

from __future__ import annotations

import errno
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.divergence import Fault, contents, diverging, drift_from, nan_at
from helpers.monitors import Signaller
from helpers.toy_runs import metrics, recipe, run

from mnemo.errors import MnemoError
from mnemo.files import tensor_file
from mnemo.recipes.recipe import HealthConfig, TrainConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.training import background_save, checkpoint_schedule, checkpointing, create_run, train
from mnemo.training.checkpoint_schedule import LARGEST_SHARE, SaveClock

ALWAYS = 1e-9
"""Minutes that have always passed."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    seconds = [100.0]
    monkeypatch.setattr(checkpoint_schedule.time, "monotonic", lambda: seconds[0])
    return seconds


def test_a_checkpoint_is_due_after_the_interval(now: list[float]) -> None:
    clock = SaveClock(2.0)
    now[0] += 119
    assert not clock.is_late()
    now[0] += 1
    assert clock.is_late()
    clock.saved(0.5)
    assert not clock.is_late()
    now[0] += 1e9
    assert not SaveClock(None).is_late()


def test_slow_saves_make_the_interval_longer(now: list[float]) -> None:
    clock = SaveClock(1.0)
    clock.saved(30.0)
    now[0] += 0.99 * 30 / LARGEST_SHARE
    assert not clock.is_late()
    now[0] += 0.02 * 30 / LARGEST_SHARE
    assert clock.is_late()


@pytest.mark.parametrize("minutes", [0.0, -1.0])
def test_an_interval_is_positive(minutes: float) -> None:
    with pytest.raises(ValueError, match="checkpoint_minutes"):
        TrainConfig(checkpoint_minutes=minutes)


def every_checkpoint(folder: Path) -> dict[str, bytes]:
    """All tensors of all checkpoints that the recipe plans."""
    found = [checkpoints.load_checkpoint(path) for path in (folder / checkpoints.CHECKPOINTS).iterdir()]
    return {
        f"{each.step} {name}": tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for each in found
        if each.reason != "clock"
        for part in checkpoints.PARTS
        for name, tensor in each.tensors(part).items()
    }


def test_clock_and_background_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing is so slow here that training goes on meanwhile."""
    settings: dict[str, Any] = {"steps": 60, "checkpoint_every": 20, "eval_every": 30, "keep": 9}
    monkeypatch.setattr(checkpointing, "fits_twice", lambda parts: False)
    run(tmp_path / "plain", of=recipe(checkpoint_minutes=None, **settings))
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint_schedule, "LARGEST_SHARE", float("inf"))
    made, write = [], checkpoints.save_checkpoint

    def slow(folder: Path, progress: dict[str, Any], parts: Any) -> Path:
        time.sleep(0.02)
        made.append(progress["reason"])
        return write(folder, progress, parts)

    monkeypatch.setattr(checkpoints, "save_checkpoint", slow)
    run(tmp_path / "timed", of=recipe(checkpoint_minutes=ALWAYS, **settings))
    assert "clock" in made
    assert metrics(tmp_path / "timed") == metrics(tmp_path / "plain")
    assert every_checkpoint(tmp_path / "timed") == every_checkpoint(tmp_path / "plain")
    steps = [checkpoints.checkpoint_steps(tmp_path / name) for name in ("timed", "plain")]
    assert steps[0] == steps[1]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [nan_at(7), drift_from(5, 11)], ids=["nan", "drift"])
def test_a_rollback_does_not_depend_on_the_clock(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_schedule, "LARGEST_SHARE", float("inf"))
    settings: dict[str, Any] = {"steps": 18, "batch": 4, "health": HealthConfig(patience=3, slower_steps=4)}
    for name, minutes in (("plain", None), ("timed", ALWAYS)):
        monkeypatch.setattr(checkpointing, "fits_twice", lambda parts: False)  # so that every step is saved
        with diverging(fault):
            run(tmp_path / name, of=recipe(checkpoint_minutes=minutes, **settings))
    assert "rollback" in metrics(tmp_path / "plain").decode()
    assert contents(tmp_path / "timed") == contents(tmp_path / "plain")


def test_an_error_in_the_background_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(steps=10**6, checkpoint_every=10**6)
    create_run(wanted, tmp_path / "run")
    train(tmp_path / "run", monitor=Signaller(signal.SIGTERM, step=2))

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "save_file", full)
    monkeypatch.setattr(checkpoint_schedule.SaveClock, "is_late", lambda self: True)
    with pytest.raises(MnemoError, match=r"cannot save .*step-0000000\d: No space left on device"):
        train(tmp_path / "run")
    last = run_folder.last_checkpoint(tmp_path / "run")
    assert last is not None and last.step == 2


def test_tensors_too_large_to_copy_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_save, "memory_bytes", lambda device: 1000)
    monkeypatch.setattr(checkpointing, "BackgroundSave", None)
    assert run(tmp_path / "run").step == 12
    assert checkpoints.checkpoint_steps(tmp_path / "run")[-1] == 12


def always_late(folder: Path) -> list[str]:
    """Train with a checkpoint after every step; return the reasons of all that were written."""
    made, write = [], checkpointing.save_together

    def recorded(folder: Path, progress: dict[str, Any], *rest: Any) -> Path:
        made.append(progress["reason"])
        return write(folder, progress, *rest)

    checkpoint_schedule.LARGEST_SHARE = float("inf")
    checkpointing.save_together = recorded
    train(folder)
    return made


@pytest.mark.thorough
def test_two_processes_save_by_the_clock_together(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 4, "batch": 4, "device": "cpu", "parallel": "ddp"}
    for name, minutes in (("plain", None), ("timed", ALWAYS)):
        create_run(recipe(checkpoint_minutes=minutes, **settings), tmp_path / name)
        made = ranks.run(2, always_late, tmp_path / name)
        assert made[0] == made[1] and ("clock" in made[0]) == (name == "timed")
    assert metrics(tmp_path / "timed") == metrics(tmp_path / "plain")
