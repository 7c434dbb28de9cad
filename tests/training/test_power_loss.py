"""After a power failure at any moment, a run resumes from the newest checkpoint that was reported as saved."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.power_loss import Crash, Event, Mark, Recorder, Rename, Sync, Write, states
from helpers.toy_runs import metrics, recipe

from mnemo.files import atomic
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage.run_header import load_header
from mnemo.training import create_run, train

CREATED = "created"
SAVED = (0, 2, 3, 4, 6)
"""Every second step, and step 3, whose validation loss is the best until then."""
SHORT = recipe(steps=6, keep=1, checkpoint_every=2, eval_every=3, log_every=1)


def record(root: Path) -> list[Event]:
    """The file operations of a short run, with a mark after its creation and after each saved checkpoint."""
    recorder = Recorder(root)
    save = checkpoints.save_checkpoint

    def save_and_mark(folder: Path, progress: dict[str, Any], parts: Any) -> Path:
        path = save(folder, progress, parts)
        recorder.mark(progress["step"])
        return path

    with recorder.recording(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save_checkpoint", save_and_mark)
        create_run(SHORT, root / "runs" / "run")
        recorder.mark(CREATED)
        train(root / "runs" / "run")
    return recorder.events


def is_left_aside(path: str) -> bool:
    return f"{atomic.PREFIX}" in path or path.endswith(("/lock", "/timing.jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a crash, with all checkpoints."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    create_run(recipe(steps=6, keep=9, checkpoint_every=2, eval_every=3, log_every=1), folder)
    train(folder)
    return folder


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return record(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def crashes(events: list[Event]) -> list[Crash]:
    return states(events, is_left_aside)


def tensor_files(folder: Path, step: int) -> dict[str, str]:
    """Checksums of a checkpoint's files; equal tensors are equal files."""
    return checkpoints.load_checkpoint(checkpoints.checkpoint_path(folder, step)).checksums


def check(crash: Crash, root: Path, whole: Path) -> None:
    """What was reported as done is still there, and what is loaded is what was saved."""
    crash.build(root)
    folder = root / "runs" / "run"
    if CREATED not in crash.marks:
        return
    assert load_header(folder).recipe == SHORT
    saved = [mark for mark in crash.marks if mark != CREATED]
    found, problems = checkpoints.last_whole_checkpoint(folder)
    assert not problems, problems
    if saved:
        assert found is not None and found.step >= saved[-1], f"step {saved[-1]} is lost"
    if found is not None:
        assert found.checksums == tensor_files(whole, found.step)


def test_the_operations_are_recorded(events: list[Event], crashes: list[Crash]) -> None:
    """A recorder that sees nothing would let every other test pass."""
    kinds = Counter(type(event) for event in events)
    assert kinds[Sync] > 40 and kinds[Rename] > 60 and kinds[Write] > 30 and len(crashes) > 25
    marks = (CREATED, *SAVED)
    assert tuple(event.text for event in events if isinstance(event, Mark)) == marks
    assert {crash.marks for crash in crashes} == {marks[:count] for count in range(len(marks) + 1)}


def test_saved_checkpoints_survive_a_power_failure(crashes: list[Crash], whole: Path, tmp_path: Path) -> None:
    for number, crash in enumerate(crashes):
        check(crash, tmp_path / str(number), whole)


@pytest.mark.thorough
@pytest.mark.slow
def test_temporary_files_do_not_disturb(events: list[Event], whole: Path, tmp_path: Path) -> None:
    for number, crash in enumerate(states(events, lambda path: False)):
        check(crash, tmp_path / str(number), whole)


def test_a_run_goes_on_after_a_power_failure(crashes: list[Crash], whole: Path, tmp_path: Path) -> None:
    begun = [crash for crash in crashes if CREATED in crash.marks]
    for number, crash in enumerate(random.Random(1).sample(begun, 12)):
        folder = tmp_path / str(number) / "runs" / "run"
        crash.build(tmp_path / str(number))
        train(folder)
        assert metrics(folder) == metrics(whole)


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_a_missing_flush_is_found(lost: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fsync of files, or of folders, some crash loses a saved checkpoint or leaves a broken one."""
    sync = atomic.sync
    monkeypatch.setattr(atomic, "sync", lambda path: None if path.is_dir() == (lost == "folder") else sync(path))
    (tmp_path / "disk").mkdir()
    found = states(record(tmp_path / "disk"), is_left_aside)
    with pytest.raises(Exception, match="lost|is missing|truncated|damaged|no run|assert"):
        for number, crash in enumerate(found):
            check(crash, tmp_path / str(number), whole)
