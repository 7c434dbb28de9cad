"""The demo, in small: every part of it runs, and its task shows what a memory is for."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.run_folders import make_run, score, write_result

from mnemo import cli
from mnemo.cli import demo_background, demo_phases, demo_time
from mnemo.cli import demo_training as demo
from mnemo.cli.demo_page import headline
from mnemo.cli.demo_phases import PHASES
from mnemo.cli.demo_time import Throttled
from mnemo.errors import MnemoError
from mnemo.recipes.recipe import Recipe
from mnemo.report.number_text import percent
from mnemo.report.runs import Run, read_runs
from mnemo.storage.run_folder import open_run
from mnemo.training import Monitor, Outcome, Status, Unwatched
from mnemo.training.single_thread import single_threaded

TINY = replace(demo.QUICK, recall_steps=40, short_steps=20, byte_steps=12)
"""Larger than what a starved machine trains."""
SMALLEST = replace(demo.QUICK, recall_steps=4, byte_steps=4, byte_eval_every=2, symbols=1500)


class Recorder(Unwatched):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def trained(self, status: Status) -> None:
        self.steps.append(status.step)


def train_recall(folder: Path, memory: int, size: demo.DemoSize) -> Outcome:
    return demo.train_task(folder, demo.recall_recipe(memory, size), Unwatched())


def metrics(folder: Path, split: str) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["split"] == split]


def test_the_demo_runs_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "QUICK", SMALLEST)
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
        "Right answers: short recall",
        "What memory is worth: python",
        "Samples",
        "--quick trains a few steps, which teach the models nothing",
    ):
        assert words in page
    assert "--quick trains a few steps" in captured.err
    assert "Left out of this page" not in page
    for name in (*demo.RECALL_RUNS, demo.BYTES):
        assert open_run(out / name, device="cpu").step > 0
    kinds = [json.loads(path.read_text())["kind"] for path in (out / demo.BYTES / "results").glob("*.json")]
    assert sorted(kinds) == ["positions", "positions", "sample", "sweep"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both runs of the recall task."""
    folder = tmp_path_factory.mktemp("recall")
    for name, memory, steps in (("with-memory", demo.RECALL_SEGMENT, 100), ("without-memory", 0, 140)):
        train_recall(folder / name, memory, replace(demo.QUICK, recall_steps=steps))
    return folder


@pytest.mark.thorough
def test_memory_solves_the_task(trained: Path) -> None:
    result = json.loads((trained / "with-memory" / "results" / "score.json").read_text())
    assert result["score"]["accuracy"] > 0.99
    assert metrics(trained / "with-memory", "valid")[-1]["loss"] < 0.1


@pytest.mark.thorough
def test_without_memory_there_is_only_guessing(trained: Path) -> None:
    run = trained / "without-memory"
    assert not metrics(run, "event"), "a loss that stays is no divergence"
    losses = [record["loss"] for record in metrics(run, "valid")]
    assert min(losses) > 0.99 * math.log(demo.NUM_SYMBOLS)
    result = json.loads((run / "results" / "score.json").read_text())
    assert result["score"]["accuracy"] < 2 / demo.NUM_SYMBOLS


@pytest.mark.thorough
def test_the_demo_repeats_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_recall(tmp_path / name, demo.RECALL_SEGMENT, demo.QUICK)
    texts = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("a", "b")]
    assert texts[0] == texts[1] and texts[0]


def test_the_byte_model_is_the_preset() -> None:
    recipe, full = demo.preset(demo.PRESET), demo.byte_recipe(demo.FULL)
    assert full.model == recipe.model and full.data == recipe.data
    assert full.train.steps == demo.FULL.byte_steps and full.train.optimizer == recipe.train.optimizer


@pytest.mark.thorough
def test_all_models_of_a_comparison_are_cut_alike_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "FULL", replace(TINY, symbols=8000))  # a quarter is scored
    monkeypatch.setattr(demo_phases, "available_cores", lambda: 1)  # the shares of phases depend on it
    monkeypatch.setattr(demo_time, "seconds_per_step", lambda recipe, train: 0.5)
    monkeypatch.setattr("mnemo.cli.demo_phases._Phases.elapsed", lambda phases: 1.0)
    out = tmp_path / "demo"
    assert cli.main(["demo", "--minutes", "2", "--out", str(out)]) == 0
    for comparison in (demo.RECALL, demo.SHORT_RECALL):
        results = [json.loads((out / name / "results" / "score.json").read_text()) for name in comparison.recipes]
        assert {result["step"] for result in results} == {10}
    page, printed = (out / "report.html").read_text(encoding="utf-8"), capsys.readouterr().err
    for text in (page, printed):
        assert "the model with memory and the one without: 10 of 40 steps" in text
        assert "every kind of memory on the short task: 10 of 20 steps" in text
        assert "the byte model: 1" not in text
        assert "mnemo demo --minutes 7" in text and "make demo MINUTES=7" in text
    assert page.index("<h1>Too little was trained to show anything</h1>") < page.index("cut alike") < page.index("<nav")


class Clock:
    """A clock of a slow machine: it advances only when a model is trained or evaluated."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_speed_counts_steps_and_their_share_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(demo_time.time, "monotonic", clock)

    def train(folder: Path, recipe: Recipe, monitor: Monitor) -> Outcome:
        assert not folder.exists() and recipe.evaluation.limit == demo.FULL.symbols // demo_time.MEASURED_SHARE
        clock.now += 50.0
        for step in range(2, recipe.train.steps + 1):
            clock.now += 2.0
            monitor.trained(Status(step, recipe.train.steps, 1.0, 0.1, 1.0, 1.0))
        clock.now += 3.0
        monitor.evaluated(recipe.train.steps, 1.0, True)
        return Outcome(folder, recipe.train.steps, None, None)

    whole = 3.0 * demo_time.MEASURED_SHARE / demo.FULL.byte_eval_every
    assert demo_time.seconds_per_step(demo.byte_recipe(demo.FULL), train) == pytest.approx(2.0 + whole)


def test_the_speed_of_a_real_model_is_measured() -> None:
    recipe = demo.recall_recipe(demo.RECALL_SEGMENT, demo.FULL)
    assert 0 < demo_time.seconds_per_step(recipe, demo.train_task) < 60


@pytest.mark.parametrize(
    ("step_seconds", "seconds", "steps"), [(0.001, 100.0, 200), (0.1, 40.0, 200), (0.1, 20.0, 100), (9.0, 1.0, 10)]
)
def test_steps_fit_into_the_time(
    monkeypatch: pytest.MonkeyPatch, step_seconds: float, seconds: float, steps: int
) -> None:
    monkeypatch.setattr(demo_time, "seconds_per_step", lambda recipe, train: step_seconds)
    fitted = demo_time.fit_steps(demo.RECALL, demo.FULL, seconds)
    assert (fitted.steps, fitted.is_cut) == (steps, steps < 200)


@pytest.fixture(scope="module")
def invented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs of the recall task with invented results."""
    folder = tmp_path_factory.mktemp("invented")
    for name, memory, share in zip(demo.RECALL_RUNS, (demo.RECALL_SEGMENT, 0), (0.95, 0.2), strict=True):
        run = make_run(folder / name, demo.recall_recipe(memory, demo.QUICK), unit="symbol", corpus="recall", steps=140)
        write_result(run, "score", kind="score", score=score(memory, 0.1, accuracy=share))
    return folder


@pytest.mark.parametrize("made", ["invented", pytest.param("trained", marks=pytest.mark.thorough)])
def test_the_first_sentence_is_computed(made: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(made)
    runs, _ = read_runs([folder / name for name in demo.RECALL_RUNS])
    shares = [run.results.scores[-1].accuracy for run in runs]
    assert made == "trained" or shares == [0.95, 0.2]
    first = headline(runs, ["a note"])
    assert first.sentence == f"With memory: {percent(shares[0] or 0)} right; without: {percent(shares[1] or 0)}"
    assert first.figure is not None and first.notes == ("a note",)
    assert [row[1] for row in first.figure.numbers.rows] == shares
    alike = headline([runs[1], replace(runs[1], name="with-memory")], [])
    assert alike.sentence == "Too little was trained to show anything" and alike.figure is None
    assert alike.notes[0].endswith("after 140 steps.")
    assert headline([Run(folder, "with-memory")], []).sentence == "The models were not trained"


@pytest.mark.thorough
def test_two_cores_train_the_same_byte_model_as_one(tmp_path: Path) -> None:
    beside = demo_background.BackgroundTraining(tmp_path, SMALLEST, None)
    try:
        watch = Recorder()
        assert list(beside.finish(watch)) == []
    finally:
        beside.stop()
    with single_threaded():
        demo.train_bytes(tmp_path / "alone", demo.byte_recipe(SMALLEST), Unwatched())
    assert watch.steps[-1] == SMALLEST.byte_steps
    assert metrics(tmp_path / demo.BYTES, "valid") == metrics(tmp_path / "alone", "valid")
    assert metrics(tmp_path / demo.BYTES, "train") == metrics(tmp_path / "alone", "train")


@pytest.mark.thorough
def test_a_byte_model_that_cannot_be_trained_ends_the_demo(tmp_path: Path) -> None:
    (tmp_path / demo.BYTES).write_text("in the way")
    beside = demo_background.BackgroundTraining(tmp_path, demo.QUICK, None)
    try:
        with pytest.raises(MnemoError, match="the byte model: .*bytes"):
            list(beside.finish(Unwatched()))
    finally:
        beside.stop()


def test_a_byte_model_whose_process_dies_ends_the_demo(tmp_path: Path) -> None:
    beside = demo_background.BackgroundTraining(tmp_path, demo.QUICK, 1e9)
    beside.stop()
    with pytest.raises(MnemoError, match="has ended without a result"):
        list(beside.finish(Unwatched()))


@pytest.mark.thorough
def test_one_core_trains_one_model_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_phases, "available_cores", lambda: 1)
    monkeypatch.setattr(demo_phases, "BackgroundTraining", None)
    assert cli.main(["demo", "--quick", "--out", str(tmp_path / "demo")]) == 0
    assert "[4/9] a byte model learns" in capsys.readouterr().err
    assert open_run(tmp_path / "demo" / demo.BYTES, device="cpu").step == demo.QUICK.byte_steps


def test_the_byte_model_has_the_time_of_all_phases_that_train() -> None:
    alone, beside = (demo_phases._Phases(1000.0, each) for each in (False, True))
    for phases in (alone, beside):
        with phases.next():
            pass
    expected = list(PHASES.values())
    assert beside.byte_model_seconds() > beside.seconds() and beside.seconds() > alone.seconds()
    assert beside.byte_model_seconds() == pytest.approx(1000 * 60 / (60 + sum(expected[4:])), rel=0.01)


def test_progress_lines_come_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = Clock(), Recorder()
    monkeypatch.setattr("mnemo.cli.demo_time.time.monotonic", clock)
    throttled = Throttled(recorder)
    for step in range(1, 11):
        clock.now += 0.3
        throttled.trained(Status(step, 10, 1.0, 0.1, 1.0, 1.0))
    assert recorder.steps == [1, 5, 9, 10]


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_the_time_must_be_positive(minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", f"--minutes={minutes}", "--out", str(tmp_path / "demo")]) == 2
    assert "--minutes" in capsys.readouterr().err and not (tmp_path / "demo").exists()


def test_an_interrupted_demo_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Throttled, status: Status) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Throttled, "trained", interrupt)
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
