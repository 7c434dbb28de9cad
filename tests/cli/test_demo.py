"""The demo, in small: every part of it runs, and its task shows what a memory is for."""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mnemo import cli
from mnemo.cli import demo_training as demo
from mnemo.cli.demo import PHASES
from mnemo.errors import MnemoError
from mnemo.storage.run_folder import open_run
from mnemo.training import Status, Unwatched, train

SHORT = replace(demo.QUICK, recall_steps=100)


class Recorder(Unwatched):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[int] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def trained(self, status: Status) -> None:
        self.steps.append(status.step)


def metrics(folder: Path, split: str) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["split"] == split]


def test_the_demo_runs_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert cli.main(["demo", "--quick", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == str(out / "report.html")
    for number, what in enumerate(PHASES, 1):
        assert f"[{number}/{len(PHASES)}] {what}" in captured.err
    assert "left)" in captured.err
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in (
        "with-memory",
        "without-memory",
        "Right answers: recall",
        "What memory is worth: python",
        "Samples",
    ):
        assert words in page
    assert "Left out of this page" not in page
    for name in (*demo.RECALL_RUNS, demo.BYTES):
        assert open_run(out / name, device="cpu").step > 0
    kinds = [json.loads(path.read_text())["kind"] for path in (out / demo.BYTES / "results").glob("*.json")]
    assert sorted(kinds) == ["positions", "positions", "sample", "sweep"]


def test_memory_solves_the_task(tmp_path: Path) -> None:
    demo.train_recall(tmp_path / "run", demo.RECALL_SEGMENT, SHORT, Unwatched())
    result = json.loads((tmp_path / "run" / "results" / "score.json").read_text())
    assert result["score"]["accuracy"] > 0.99
    assert metrics(tmp_path / "run", "valid")[-1]["loss"] < 0.1


def test_without_memory_there_is_only_guessing(tmp_path: Path) -> None:
    demo.train_recall(tmp_path / "run", 0, replace(SHORT, recall_steps=50), Unwatched())
    losses = [record["loss"] for record in metrics(tmp_path / "run", "valid")]
    assert min(losses) > 0.99 * math.log(demo.NUM_SYMBOLS)
    result = json.loads((tmp_path / "run" / "results" / "score.json").read_text())
    assert result["score"]["accuracy"] < 2 / demo.NUM_SYMBOLS


def test_the_demo_repeats_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        demo.train_recall(tmp_path / name, demo.RECALL_SEGMENT, demo.QUICK, Unwatched())
    texts = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("a", "b")]
    assert texts[0] == texts[1] and texts[0]


def test_the_byte_model_is_the_preset() -> None:
    recipe, full = demo.preset(demo.PRESET), demo.byte_recipe(demo.FULL)
    assert full.model == recipe.model and full.data == recipe.data
    assert full.train.steps == demo.FULL.byte_steps and full.train.optimizer == recipe.train.optimizer


def test_a_run_whose_time_is_over_stops_and_can_go_on(tmp_path: Path) -> None:
    recorder = Recorder()
    limit = demo.TimeLimit(recorder, time.monotonic() - 1)
    outcome = demo.train_recall(tmp_path / "run", demo.RECALL_SEGMENT, demo.QUICK, limit)
    assert limit.expired and outcome.signal == signal.SIGINT
    assert outcome.step == 5 and recorder.steps == [5]
    assert recorder.notes[-1] == "out of time: stopping after step 5 of 20"
    data = demo.recall_data(demo.recall_recipe(demo.RECALL_SEGMENT, demo.QUICK))
    assert train(tmp_path / "run", data=data).step == 20


def test_a_slow_machine_still_gets_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hurry = replace(demo.QUICK, recall_seconds=0.0, byte_seconds=0.0, seconds=0.0)
    monkeypatch.setattr(demo, "QUICK", hurry)
    assert cli.main(["demo", "--quick", "--out", str(tmp_path / "demo")]) == 0
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "of 20" in page and "of 12" in page
    assert capsys.readouterr().err.count("out of time: stopping after") == 3


def test_an_interrupted_demo_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: demo.TimeLimit, status: Status) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo.TimeLimit, "trained", interrupt)
    assert cli.main(["demo", "--quick", "--out", str(tmp_path / "demo")]) == 130


def test_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    demo.create_demo_folder(tmp_path / "demo")
    (tmp_path / "demo" / "old.txt").touch()
    demo.create_demo_folder(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [demo.MARKER]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(MnemoError, match="not made by mnemo demo"):
        demo.create_demo_folder(tmp_path)
    with pytest.raises(MnemoError, match="not made by mnemo demo"):
        demo.create_demo_folder(tmp_path / "precious.txt")
    assert (tmp_path / "precious.txt").read_text() == "mine"
