"""Files and folders that are complete under their name, or absent."""

from __future__ import annotations

import os
import signal
import stat
from multiprocessing import get_context
from pathlib import Path

import pytest

from mnemo.files import atomic
from mnemo.files.json_file import load_json, write_json


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic.new_file(target) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new" and names(tmp_path) == ["a.txt"]


def test_a_failed_write_keeps_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(OSError, match="full"), atomic.new_file(target) as partial:
        partial.write_text("half")
        raise OSError("full")
    assert target.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    """A library that writes through a temporary file of its own would leave a file for its owner only."""
    expected = tmp_path / "expected"
    expected.touch()
    with atomic.new_file(tmp_path / "a") as partial:
        partial.unlink()
        partial.touch(0o600)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(expected.stat().st_mode)


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("old")
    (tmp_path / "a.json").symlink_to(precious)
    write_json(tmp_path / "a.json", {"x": 1})
    assert precious.read_text() == "old" and load_json(tmp_path / "a.json")["x"] == 1


def test_leftovers_of_a_killed_process_are_removed_after_a_day(tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=write_half, args=(tmp_path / "a[1].txt",))
    process.start()
    process.join()
    (left,) = tmp_path.iterdir()
    assert process.exitcode == -signal.SIGKILL and left.name.startswith(".tmp-a[1].txt.")
    write(tmp_path / "a[1].txt")
    assert left.exists()
    os.utime(left, (0, 0))
    write(tmp_path / "a[1].txt")
    assert names(tmp_path) == ["a[1].txt"]


def write(target: Path) -> None:
    with atomic.new_file(target) as partial:
        partial.write_text("whole")


def write_half(target: Path) -> None:
    with atomic.new_file(target) as partial:
        partial.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_new_folder_takes_the_place_of_an_empty_one_only(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with atomic.new_folder(target) as partial:
        (partial / "first").touch()
    with pytest.raises(OSError), atomic.new_folder(target) as partial:
        (partial / "second").touch()
    assert names(target) == ["first"] and names(tmp_path) == ["folder"]
    with atomic.new_folder(target, replace=True) as partial:
        (partial / "second").touch()
    assert names(target) == ["second"] and names(tmp_path) == ["folder"]


def test_the_first_of_two_processes_fills_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with atomic.new_folder(target, keep=True) as slower:
        (slower / "slower").touch()
        with atomic.new_folder(target, keep=True) as faster:
            (faster / "faster").touch()
    assert names(target) == ["faster"] and names(tmp_path) == ["folder"]


def test_other_errors_of_a_folder_are_not_kept_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has its name, but may not survive a power failure."""

    def fail(path: Path) -> None:
        if path == tmp_path:
            raise OSError("input/output error")

    monkeypatch.setattr(atomic, "sync", fail)
    with pytest.raises(OSError, match="input/output"), atomic.new_folder(tmp_path / "folder", keep=True) as partial:
        (partial / "file").touch()
    assert names(tmp_path / "folder") == ["file"]


def test_every_file_of_a_folder_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real = Path.rename
    monkeypatch.setattr(atomic, "sync", lambda path: events.append(path.name))
    monkeypatch.setattr(Path, "rename", lambda path, target: (events.append("rename"), real(path, target))[1])
    with atomic.new_folder(tmp_path / "folder") as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "a.bin").touch()
    assert events.index("a.bin") < events.index("rename") < events.index(tmp_path.name)


def test_an_interrupted_removal_leaves_no_folder_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-1").mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda path, ignore_errors: None)
    atomic.remove_folder(tmp_path / "step-1")
    assert not (tmp_path / "step-1").exists()
