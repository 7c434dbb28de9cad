"""`mnemo runs`: a list with states, and removing and renaming of runs and of nothing else."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import tiny_run

from mnemo import cli
from mnemo.files.json_file import load_json, write_json
from mnemo.storage.checkpoint import PARTS, save_checkpoint
from mnemo.storage.run_folder import locked
from mnemo.storage.run_header import RECIPE
from mnemo.training import Diverged, train
from mnemo.training.trainer import Trainer


def copy_run(target: Path, steps: int | None = None) -> Path:
    """A finished run; `steps`: change its recipe to this number."""
    shutil.copytree(tiny_run(), target, ignore=shutil.ignore_patterns("results", "analyses"))
    if steps is not None:
        header = load_json(target / RECIPE)
        header["recipe"]["train"]["steps"] = steps
        write_json(target / RECIPE, header)
    return target


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["runs", "--json"]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)}


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert cli.main(["runs", *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def test_states(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(runs / "done")
    copy_run(runs / "half", steps=9)
    copy_run(runs / "nested" / "inner")
    shutil.rmtree(copy_run(runs / "fresh") / "checkpoints")
    (runs / "fresh" / "best.json").unlink()
    shutil.rmtree(copy_run(runs / "foreign") / "checkpoints")
    save_checkpoint(runs / "foreign", {"step": 0, "average_count": 0}, {part: {} for part in PARTS})
    (copy_run(runs / "broken") / RECIPE).write_text("{")
    assert cli.main(["export", "done", "--output", "runs/small"]) == 0
    (runs / "reports").mkdir()
    (runs / "reports" / "report.html").write_text("a page")
    found = listed(capsys)
    assert {name: run["state"] for name, run in found.items()} == {
        "done": "finished",
        "half": "stopped",
        "nested/inner": "finished",
        "fresh": "not trained yet",
        "foreign": "converted",
        "broken": "damaged",
        "small": "exported",
    }
    assert (found["half"]["step"], found["half"]["steps"]) == (2, 9)
    assert found["done"]["bpc"] == pytest.approx(found["done"]["best"]["loss"] / 0.6931471805599453)
    assert found["done"]["memory"] == "8 in all 2 layers" and found["fresh"]["best"] is None
    assert found["done"]["bytes"] == sum(path.stat().st_size for path in (runs / "done").rglob("*") if path.is_file())
    assert "recipe.json" in found["broken"]["note"]


def test_the_table_names_the_step_of_a_stopped_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(runs / "half", steps=9)
    assert cli.main(["runs"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "state", "steps", "best", "memory", "size", "written"]
    assert row.startswith("half  stopped at step 2  2 of 9  ") and " bpc " in row


def test_the_last_run_stands_at_the_end(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, age in (("b", 3000.0), ("a", 4000.0), ("c", 2000.0)):
        for path in [*copy_run(runs / name).rglob("*")]:
            os.utime(path, (age, age))
    assert list(listed(capsys)) == ["c", "b", "a"]


def test_a_run_that_is_being_trained(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_run(runs / "x", steps=900)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "split": "train", "loss": 1.0}\n{"step": 8, "spl')
    with locked(folder):
        found = listed(capsys)["x"]
        assert (found["state"], found["step"]) == ("being trained", 7)
        assert "in use by another process" in complaint(capsys, "remove", "x", "--yes")
        assert "in use by another process" in complaint(capsys, "rename", "x", "y")
    assert listed(capsys)["x"]["state"] == "stopped"


def test_a_divergence_is_remembered_until_the_run_is_resumed(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_run(runs / "x", steps=3)

    def diverge(self: Trainer, stop: Any) -> None:
        raise Diverged("the loss is nan at step 3")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "run", diverge)
        with pytest.raises(Diverged):
            train(folder)
    found = listed(capsys)["x"]
    assert (found["state"], found["note"]) == ("diverged", "the loss is nan at step 3")
    train(folder)
    assert listed(capsys)["x"]["state"] == "finished"


def test_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs"]) == 0
    assert "there are no runs in runs; mnemo train mybook.txt starts one" in capsys.readouterr().out


def test_removing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        copy_run(runs / name)
    assert cli.main(["runs", "remove", "a", "runs/b", "--yes"]) == 0
    assert capsys.readouterr().out == "removed runs/a\nremoved runs/b\n"
    assert [path.name for path in runs.iterdir()] == ["c"]
    assert "name the runs to remove" in complaint(capsys, "remove")
    assert "unknown run 'd'" in complaint(capsys, "remove", "c", "d", "--yes")
    assert (runs / "c" / RECIPE).is_file()  # nothing is removed if a name is wrong


@pytest.mark.parametrize(("answer", "left"), [("y\n", []), ("yes\n", []), ("\n", ["a"]), ("n\n", ["a"])])
def test_removing_asks_first(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: list[str]
) -> None:
    copy_run(runs / "a")
    assert "add --yes" in complaint(capsys, "remove", "a")
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert cli.main(["runs", "remove", "a"]) == 0
    assert "remove runs/a (finished, " in capsys.readouterr().err
    assert [path.name for path in runs.iterdir()] == left


def test_what_is_no_run_is_never_removed(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(runs / "a")
    (runs / "reports").mkdir()
    (tmp_path / "cooking").mkdir()
    (tmp_path / "cooking" / RECIPE).write_text('{"cake": "apples"}')
    assert "reports is not a run" in complaint(capsys, "remove", "runs/reports", "--yes")
    assert "reports" in complaint(capsys, "remove", "reports", "--yes")
    assert "cooking is not a run" in complaint(capsys, "remove", "cooking", "--yes")
    assert "is a folder of runs, not a run" in complaint(capsys, "remove", ".", "--yes")
    assert "is a folder of runs, not a run" in complaint(capsys, "remove", "runs", "--yes")
    assert (runs / "reports").is_dir() and (tmp_path / "cooking").is_dir() and (runs / "a").is_dir()


def test_a_link_to_a_run_is_removed_and_the_run_stays(runs: Path, tmp_path: Path) -> None:
    copy_run(tmp_path / "disk" / "a")
    runs.mkdir()
    (runs / "link").symlink_to(tmp_path / "disk" / "a")
    assert cli.main(["runs", "remove", "link", "--yes"]) == 0
    assert not (runs / "link").is_symlink() and (tmp_path / "disk" / "a" / RECIPE).is_file()


def test_renaming(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_run(runs / "a")
    copy_run(runs / "b")
    assert cli.main(["runs", "rename", "a", "first"]) == 0
    assert capsys.readouterr().out == "renamed runs/a to runs/first\n"
    assert cli.main(["generate", "first", "--tokens", "2", "--device", "cpu", "--no-save"]) == 0
    assert "runs/b exists" in complaint(capsys, "rename", "first", "b")
    assert "cannot be a run's name" in complaint(capsys, "rename", "first", "../x")
    assert "name a run and its new name" in complaint(capsys, "rename", "first")
    assert sorted(path.name for path in runs.iterdir()) == ["b", "first"]
