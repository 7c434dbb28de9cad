"""Results of a run on its page: scores that can be told apart, memories in words, sizes of every checkpoint."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.page_reader import read_page
from helpers.run_folders import make_run, recipe, score, write_result

from mnemo.cli.demo_training import QUICK, short_recall_recipe
from mnemo.memory import LSTM, XL, Associative, Compressive, MemoryTokens, Plan, WriteTokens
from mnemo.model import ModelConfig
from mnemo.model.positions import NoPositions, Relative
from mnemo.recipes.memory_words import memory_in_words, memory_without_slots
from mnemo.recipes.recipe import EvalConfig
from mnemo.report.run_page import write_report
from mnemo.report.run_summary import run_table
from mnemo.report.runs import read_run


def shown(run: Path) -> list[str]:
    """The details of each score in the table of runs."""
    found = read_run(run, run.name)
    assert found.notes == []
    table = run_table([found])
    return [details[0] for _, details in table.rows[0][1][table.headers.index("Scores")]]


USUAL: dict[str, Any] = {"which": "best", "precision": "fp32", "starts_from": "empty", "limit": None}
AS_TRAINED: dict[str, Any] = {"batch": 10, "context": 0, "clamp": None, "temperature": 1.0, "sliding": False}
CONDITIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "memory 64, segment 64, 20,000 tokens"),
    ({}, {"batch": 400}, "memory 64, segment 64, batch 400, 20,000 tokens"),
    ({"precision": "bf16", "limit": 20000}, {}, "memory 64, segment 64, bf16, limit 20,000, 20,000 tokens"),
    (
        {"which": "last"},
        {"temperature": 1.05},
        "memory 64, segment 64, last checkpoint, temperature 1.05, 20,000 tokens",
    ),
    ({}, {"clamp": 40, "context": 8}, "memory 64, segment 64, context 8, clamp 40, 20,000 tokens"),
    ({"starts_from": "zeros"}, {}, "memory 64, segment 64, starts from zeros, 20,000 tokens"),
    ({}, {"sliding": True, "batch": 1}, "segment 64, sliding window, 20,000 tokens"),
    ({"no_memory": True}, {}, "segment 64, no memory, 20,000 tokens"),
]


@pytest.mark.parametrize(("result", "measured", "words"), CONDITIONS)
def test_what_differs_from_the_usual_evaluation_is_shown(
    result: dict[str, Any], measured: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", recipe())
    write_result(run, "score", kind="score", score=score(64, 1.5) | AS_TRAINED | measured, **USUAL | result)
    assert shown(run) == [words]


def test_the_settings_of_the_recipe_are_the_usual_ones(tmp_path: Path) -> None:
    settings = recipe()
    positions = replace(settings.model, positions=Relative(clamp=40))
    of_test = EvalConfig(batch=1, context=8, limit=500)
    run = make_run(tmp_path / "run", replace(settings, model=positions, test=of_test))
    as_configured = AS_TRAINED | {"batch": 1, "context": 8, "clamp": 40}
    write_result(run, "a", kind="score", score=score(64, 1.5) | as_configured, **USUAL | {"limit": 500})
    write_result(run, "b", kind="score", score=score(64, 1.5) | AS_TRAINED, **USUAL | {"limit": 500})
    assert shown(run)[0] == "memory 64, segment 64, 20,000 tokens"
    assert shown(run)[1] == "memory 64, segment 64, batch 10, context 0, 20,000 tokens"


def test_a_fitted_temperature_is_a_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    scores = [score(64, loss) | AS_TRAINED | {"temperature": at} for at, loss in ((1.0, 1.6), (1.1, 1.5))]
    write_result(run, "temperature", kind="temperature", scores=scores, fitted_on="valid", temperature=1.1, **USUAL)
    assert shown(run) == ["memory 64, segment 64, temperature 1.1, 20,000 tokens"]


def test_answers_name_checkpoint_and_precision(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe(), unit="symbol")
    answers = {"split": "test", "character_accuracy": 0.75, "answer_accuracy": 0.5, "samples": 100, "published": True}
    write_result(run, "answers", kind="answers", score=answers, **USUAL | {"which": "last", "precision": "bf16"})
    assert shown(run) == ["50.0% of answers, 100 samples, measured as published, last checkpoint, bf16"]


@pytest.mark.parametrize(
    ("name", "memory"),
    [("lstm", "LSTM state"), ("qrnn", "QRNN state"), ("memory-tokens", "4 memory tokens"), ("no-memory", "memory 0")],
)
def test_a_memory_without_slots_is_named(name: str, memory: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / name, short_recall_recipe(name, QUICK), unit="symbol", corpus="short recall")
    write_result(run, "score", kind="score", score=score(0, 0.01, accuracy=1.0))
    assert shown(run) == [f"100.0% right, {memory}, segment 64, 20,000 tokens"]


def test_a_memory_that_was_off_is_not_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", short_recall_recipe("lstm", QUICK))
    write_result(run, "score-valid-no-memory-m0-s64", kind="score", score=score(0, 1.5))  # without the field
    assert shown(run) == ["segment 64, no memory, 20,000 tokens"]


WITHOUT_SLOTS: list[tuple[dict[str, Any], str, str]] = [
    ({"memory": Plan(long=LSTM()), "positions": NoPositions()}, "LSTM state", "LSTM state in every layer"),
    (
        {"memory": Plan(long=XL(length=64), short=LSTM(), num_long=1, arrangement="first")},
        "LSTM state",
        "64 slots in layer 1 (XL), LSTM state in layers 2-4",
    ),
    (
        {"memory": Plan(long=Compressive(length=8, compressed=4, ratio=2))},
        "4 compressed slots of 2 rows",
        "8 slots and 4 compressed slots of 2 rows in every layer (Compressive)",
    ),
    (
        {"memory": Plan(long=Associative()), "tokens": WriteTokens(num=4)},
        "an associative matrix",
        "an associative matrix in every layer (Associative), 4 memory tokens that write to the layers",
    ),
    (
        {"memory": Plan(long=XL(length=0)), "tokens": MemoryTokens(num=4, write=False)},
        "",
        "4 memory tokens read anew by every segment",
    ),
    (
        {"memory": Plan(long=XL(length=0)), "tokens": MemoryTokens(num=1)},
        "1 memory token",
        "1 memory token carried from segment to segment",
    ),
]


@pytest.mark.parametrize(("changes", "short", "whole"), WITHOUT_SLOTS)
def test_memories_in_words(changes: dict[str, Any], short: str, whole: str) -> None:
    model = ModelConfig(num_layers=4, dim=64, num_heads=2, **changes)
    assert (memory_without_slots(model), memory_in_words(model)) == (short, whole)


SIZES = {"loss": 2.0, "weights": {"a": 1.0, "b": 2.0}, "rows": [1.0, 1.5], "largest_rows": [3.0, 4.0], "logits": 9.0}
STEPS = [
    {"step": 100, "scores": [7.0, 8.0], **SIZES},
    {"step": 200, "scores": [9.0, 8.0], **SIZES, "weights": {"a": 3.0, "b": 2.5}, "loss": None, "logits": None},
]


@pytest.mark.parametrize("kind", [{"kind": "growth"}, {}])
def test_sizes_of_every_checkpoint_are_a_table(kind: dict[str, str], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    write_result(run, "growth", steps=STEPS, **kind)
    assert write_report([run], tmp_path / "page.html") == []
    page = read_page(tmp_path / "page.html")
    assert "What grew" in page.text and "9 in layer 0" in page.text and "Left out" not in page.text
    with (tmp_path / "page-files" / "growth-0-run.csv").open(encoding="utf-8") as file:
        first, last = csv.DictReader(file)
    assert first["step"] == "100" and first["matrix that grew most"] == ""
    assert last["matrix that grew most"] == "3x a" and last["bits per token"] == last["largest logit"] == "inf"


BROKEN_STEPS: list[Any] = [
    [],
    7,
    [{"step": 1}],
    [{**STEPS[0], "weights": [1.0]}],
    [{**STEPS[0], "rows": ["wide"]}],
    [{**STEPS[0], "step": None}],
]


@pytest.mark.parametrize("steps", BROKEN_STEPS)
def test_broken_sizes_are_named(steps: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    write_result(run, "growth", kind="growth", steps=steps)
    (note,) = write_report([run], tmp_path / "page.html")
    assert note.startswith("run: results/growth.json is incomplete (")


def test_a_recipe_that_is_unknown_hides_no_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe())
    (run / "recipe.json").unlink()
    write_result(run, "score", kind="score", score=score(0, 1.5) | AS_TRAINED | {"batch": 400}, **USUAL)
    found = read_run(run, "run")
    assert [each.kind for each in found.results.scores] == ["batch 400"]
