"""A recorded test run says what was tested, and what failed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import commands

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_is_skipped(): pass
@pytest.fixture
def broken(): raise ValueError
def test_is_not_reached(broken): pass
"""


def recorded(folder: Path, *arguments: str) -> tuple[int | None, dict]:
    here = Path(__file__).parents[1]
    (folder / "helpers").mkdir()
    for name in ("conftest.py", "helpers/record.py"):
        shutil.copy(here / name, folder / name)
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_broken.py").write_text("import no_such_module")
    options = ["-q", "-p", "no:cacheprovider", "--record", "out/result.json", "--continue-on-collection-errors"]
    process = commands.start([*options, *arguments], folder, pytest.main)
    process.join()
    return process.exitcode, json.loads((folder / "out/result.json").read_text())


@pytest.mark.thorough
def test_a_run_is_recorded(tmp_path: Path) -> None:
    code, found = recorded(tmp_path, "--commit", "abc")
    assert code == 1
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 3, 1)
    expected = ["test_broken.py", "test_some.py::test_fails", "test_some.py::test_is_not_reached"]
    assert sorted(found["failures"]) == expected
    assert found["commit"] == "abc" and found["versions"]["torch"] == torch.__version__
    assert found["seconds"] >= 0 and found["date"].endswith("+00:00")


def test_without_git_the_commit_is_unknown(tmp_path: Path) -> None:
    assert recorded(tmp_path)[1]["commit"] is None
