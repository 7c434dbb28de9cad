"""Verbs without a run's name use the run that was trained last, and name it on stderr."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers.tiny_runs import sample_text, tiny_run

from mnemo.cli import main
from mnemo.errors import MnemoError
from mnemo.storage.run_header import RECIPE, last_run

TOLD = "mnemo: using the last run, runs/new\n"


def set_age(run: Path, seconds: float) -> None:
    for path in [run, *run.rglob("*")]:
        os.utime(path, (seconds, seconds))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an older and a newer run, a run without a checkpoint and a folder that is no run."""
    folder = tmp_path / "runs"
    for name, age in (("old", 1000.0), ("new", 2000.0), ("begun", 3000.0)):
        shutil.copytree(tiny_run(), folder / name, ignore=shutil.ignore_patterns("results", "analyses"))
        set_age(folder / name, age)
    shutil.rmtree(folder / "begun" / "checkpoints")
    (folder / "reports").mkdir()
    (folder / "reports" / "report.html").write_text("a page")
    monkeypatch.chdir(tmp_path)
    return folder


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_the_last_run_is_the_one_trained_last(runs: Path) -> None:
    assert last_run(runs) == runs / "new"
    (runs / "old" / "results").mkdir()  # a result does not count as training
    assert last_run(runs) == runs / "new"
    os.utime(runs / "old" / "metrics.jsonl", (4000.0, 4000.0))
    assert last_run(runs) == runs / "old"


def test_without_any_trained_run_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="there is no trained run in .*: train one .mnemo train mybook.txt"):
        last_run(tmp_path / "runs")


@pytest.mark.parametrize("verb", [("generate", "--tokens", "4"), ("eval", "--limit", "50"), ("analyse", "--limit=60")])
def test_verbs_without_names(verb: tuple[str, ...], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb, "--device", "cpu", "--json"]) == 0
    out, err = capsys.readouterr()
    assert TOLD in err and err.count("using the last run") == 1
    assert json.loads(out)
    assert (runs / "new" / "results").exists() or (runs / "new" / "analyses" / "tiny-bytes-valid").exists()


@pytest.mark.parametrize("verb", ["read", "analyse"])
@pytest.mark.parametrize("order", ["first", "last"])
def test_one_name_is_the_text(
    verb: str, order: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.txt").write_text(sample_text(3), encoding="utf-8")
    options = ["--device", "cpu", "--json"]
    argv = ["book.txt", *options] if order == "first" else [*options, "book.txt"]
    assert main([verb, *argv]) == 0
    out, err = capsys.readouterr()
    assert TOLD in err and json.loads(out)["tokens"] == len(sample_text(3).encode())


def test_two_names_are_run_and_text(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "book.txt").write_text(sample_text(3), encoding="utf-8")
    assert main(["read", "old", "book.txt", "--device", "cpu"]) == 0
    assert "using the last run" not in capsys.readouterr().err


def test_one_name_of_analyse_can_be_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", "old", "--limit", "60", "--device", "cpu"]) == 0
    assert "using the last run" not in capsys.readouterr().err
    assert (runs / "old" / "analyses" / "tiny-bytes-valid" / "report.html").is_file()


def test_export_takes_the_last_run(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--output", str(tmp_path / "small")]) == 0
    assert TOLD in capsys.readouterr().err
    assert main(["export", "--runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no trained run in" in capsys.readouterr().err


def test_read_needs_a_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read"]) == 2
    assert "name a text to read: mnemo read FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["read", "-"], ["analyse", "-"], ["read", "old", "-"], ["generate", "--tokens=3", "--prompt-file=-"]]
)
def test_text_from_a_pipe(
    argv: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, sample_text(3))
    assert main([*argv, "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_damaged_header_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "new" / RECIPE).write_text("{")
    os.utime(runs / "new" / RECIPE, (2000.0, 2000.0))
    assert main(["generate"]) == 2
    assert f"runs/new/{RECIPE}" in capsys.readouterr().err
