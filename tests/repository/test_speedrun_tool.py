"""The record of a speedrun has the numbers of its run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import write_json
from mnemo.memory import XL, Plan
from mnemo.model.layers import DropoutConfig
from mnemo.model.shapes import num_parameters
from mnemo.papers.records import score_in_words, scores_that_count, seconds_in_words, seeds_in_words, training_seconds
from mnemo.recipes.presets import preset
from mnemo.report.runs import read_run
from tools import speedrun

FACTS = {
    "what": "novels, one seed",
    "unit": "byte",
    "hardware": "a GPU",
    "versions": {"mnemo": "1", "torch": "2", "triton": "3"},
    "date": "2026-11-18",
    "reference": ["goal", 1.3],
}
DOCS = Path(__file__).parents[2] / "docs"
RECIPE = preset("tiny-bytes")
RECIPE = replace(
    RECIPE, train=replace(RECIPE.train, steps=8000), model=replace(RECIPE.model, memory=Plan(long=XL(length=1024)))
)
SYMBOLS = RECIPE.train.batch * RECIPE.train.segment
STEPS = [*range(100, 8001, 100)]
WARMUP = RECIPE.train.schedule.warmup
READ_AS_TRAINED = {"segment": RECIPE.train.segment, "context": 0, "clamp": None, "tokens": 1000}


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_folder(folder: Path, seed: int = RECIPE.train.seed, bpc: float = 1.5) -> Path:
    """80 intervals of 100 steps in a second each, of which the first also compiles."""
    recipe = replace(RECIPE, train=replace(RECIPE.train, seed=seed))
    folder.mkdir(exist_ok=True)
    write_json(folder / "recipe.json", {"format_version": 1, "recipe": to_json(recipe)})
    train = [
        {"step": step, "split": "train", "loss": math.log(2) * (1 + 100 / step), "grad_norm": 100 / step, "tokens": 1}
        for step in STEPS
    ]
    train[50]["grad_norm"] = None
    valid = {"step": STEPS[-1], "split": "valid", "loss": 1.25 * math.log(2)}
    write_lines(folder / "metrics.jsonl", [*train, valid])
    speeds = [{"step": step, "seconds": 60 + step / 100, "tokens_per_second": 100.0 * SYMBOLS} for step in STEPS]
    write_lines(folder / "timing.jsonl", speeds)
    (folder / "results").mkdir()
    for number, (split, batch, memory, bits) in enumerate(
        [("valid", 32, 1024, 1.25), ("test", 32, 1024, 1.75), ("test", 1, 1024, bpc), ("test", 1, 512, 2.0)]
    ):
        score = READ_AS_TRAINED | {"split": split, "memory": memory, "batch": batch, "loss": bits * math.log(2)}
        write_json(folder / "results" / f"score-{number}.json", {"limit": None, "score": score})
    sweep = {"limit": None, "scores": [score, score | {"memory": 2048, "loss": 2.5 * math.log(2)}]}
    write_json(folder / "results" / "sweep-test.json", sweep)
    return folder


def add_score(folder: Path, changes: dict[str, Any], in_file: dict[str, Any]) -> None:
    """A better score of the test set in one row, at other settings."""
    score = READ_AS_TRAINED | {"split": "test", "memory": 1024, "batch": 1, "loss": 0.9 * math.log(2)} | changes
    write_json(folder / "results" / "score-other.json", {"limit": None, **in_file, "score": score})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "run")


def test_the_record_has_the_numbers_of_the_run(folder: Path) -> None:
    made = speedrun.record([read_run(folder, "novels")], FACTS)
    assert made["symbols"] == 8000 * SYMBOLS and made["parameters"] == num_parameters(RECIPE.model)
    (found,) = made["runs"]
    assert found["training_seconds"] == 80.0 and found["seconds_in_all"] == 140.0
    assert found["symbols_per_second"] == 100 * SYMBOLS and found["hardware"] == "a GPU"
    assert found["largest_grad_norm_after_warmup"] == round(100 / min(step for step in STEPS if step > WARMUP), 3)
    assert found["valid"] == {"8000": 1.25}
    curve = [int(step) for step in found["train"]]
    assert curve[-1] == 8000 and {after - before for before, after in pairwise(curve)} == {200}
    assert found["train"]["8000"] == 1.0125
    scores = [(each["split"], each["batch"], each["memory"], each["bpc"]) for each in found["scores"]]
    assert scores == [
        ("test", 1, 512, 2.0),
        ("test", 1, 1024, 1.5),
        ("test", 1, 2048, 2.5),
        ("test", 32, 1024, 1.75),
        ("valid", 32, 1024, 1.25),
    ]
    assert scores_that_count(made) == [1.5] and score_in_words(made) == "1.5000"


def test_seeds_are_added_to_a_record(folder: Path, tmp_path: Path) -> None:
    """A run replaces that of its seed, and what else is in the file stays."""
    first = speedrun.record([read_run(folder, "one")], FACTS) | {"trials": 3}
    others = [make_folder(tmp_path / f"seed{seed}", seed, bpc) for seed, bpc in ((5, 1.25), (3, 1.75))]
    three = speedrun.record([read_run(each, "other") for each in others], FACTS, first)
    assert [run["seed"] for run in three["runs"]] == [3, 5, RECIPE.train.seed] and three["trials"] == 3
    assert scores_that_count(three) == [1.75, 1.25, 1.5] and seeds_in_words(three) == "3 seeds"
    assert score_in_words(three) == "1.5000 ± 0.2500" and training_seconds(three) == (80.0, 80.0)
    assert seconds_in_words(three) == "80"
    assert seconds_in_words({"runs": [{"training_seconds": each} for each in (2.4, 1234.0, 3.0)]}) == "2 to 1,234"
    assert three["recipe"] == first["recipe"]
    again = speedrun.record([read_run(make_folder(tmp_path / "again", 5, 1.0), "again")], FACTS, three)
    assert scores_that_count(again) == [1.75, 1.0, 1.5]
    twice = [read_run(tmp_path / name, name) for name in ("again", "seed5")]
    with pytest.raises(MnemoError, match="seed5 has the seed 5, as another of the runs does"):
        speedrun.record(twice, FACTS)
    svg = speedrun.picture(again, "novels")
    assert len({line for line in re.findall(r"valid[^:<]*, seed \d+", svg)}) == 3


def test_runs_with_other_recipes_do_not_share_a_record(folder: Path, tmp_path: Path) -> None:
    first = speedrun.record([read_run(folder, "one")], FACTS)
    other = make_folder(tmp_path / "other", 7)
    recipe = replace(RECIPE, train=replace(RECIPE.train, seed=7, batch=RECIPE.train.batch + 1))
    write_json(other / "recipe.json", {"format_version": 1, "recipe": to_json(recipe)})
    with pytest.raises(MnemoError, match="other has another recipe"):
        speedrun.record([read_run(other, "other")], FACTS, first)


def test_files_are_written_and_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, numbers, drawing = (tmp_path / name for name in ("facts.json", "numbers.json", "curves.svg"))
    facts.write_text(json.dumps(FACTS))
    speedrun.write([str(folder)], str(facts), str(numbers), str(drawing))
    assert capsys.readouterr().out.split() == [str(numbers), str(drawing)]
    assert json.loads(numbers.read_text())["steps"] == 8000 and drawing.read_text().startswith("<svg")
    other = make_folder(tmp_path / "other", 7)
    speedrun.write([str(other)], str(facts), str(numbers), str(drawing))
    assert len(json.loads(numbers.read_text())["runs"]) == 2 and not capsys.readouterr().err
    (other / "results" / "score-0.json").unlink()
    speedrun.write([str(other)], str(facts), str(numbers), str(drawing))
    assert capsys.readouterr().err == "replaced: the run of seed 7\n"
    facts.write_text(json.dumps(FACTS | {"versions": {"mnemo": "1", "torch": "2"}} | {"date": None}))
    with pytest.raises(MnemoError, match=r"facts.json lacks versions of triton$"):
        speedrun.write([str(folder)], str(facts), str(numbers), str(drawing))
    facts.write_text(json.dumps({name: value for name, value in FACTS.items() if name != "date"}))
    with pytest.raises(MnemoError, match=r"facts.json lacks date$"):
        speedrun.write([str(folder)], str(facts), str(numbers), str(drawing))


def test_a_run_without_the_score_that_counts_is_refused(folder: Path) -> None:
    (folder / "results" / "score-2.json").unlink()
    with pytest.raises(MnemoError, match="no score of the whole test set in one row at the memory of training"):
        speedrun.record([read_run(folder, "novels")], FACTS)


@pytest.mark.parametrize(
    ("changes", "in_file"),
    [
        ({"tokens": 100}, {"limit": 100}),
        ({"temperature": 0.8}, {}),
        ({"segment": 2 * RECIPE.train.segment}, {}),
        ({"context": 8}, {}),
        ({"clamp": 7}, {}),
        ({"sliding": True}, {}),
        ({"documents": "reset"}, {}),
        ({}, {"starts_from": "zeros"}),
    ],
)
def test_other_scores_do_not_count(changes: dict[str, Any], in_file: dict[str, Any], folder: Path) -> None:
    add_score(folder, changes, in_file)
    assert scores_that_count(speedrun.record([read_run(folder, "novels")], FACTS)) == [1.5]


def test_scores_of_versions_that_do_not_tell_the_limit_do_not_count(folder: Path) -> None:
    """They may be of a part of the text."""
    (folder / "results" / "score-2.json").unlink()
    score = READ_AS_TRAINED | {"split": "test", "memory": 1024, "batch": 1, "loss": 0.9 * math.log(2), "tokens": 100}
    write_json(folder / "results" / "score-old.json", {"score": score})
    with pytest.raises(MnemoError, match="has no score of the whole test set"):
        speedrun.record([read_run(folder, "novels")], FACTS)


def test_a_run_with_two_scores_that_count_is_refused(folder: Path) -> None:
    """Those of two checkpoints, for example."""
    add_score(folder, {}, {"which": "last"})
    with pytest.raises(MnemoError, match=r"several scores that count: 0\.9000, 1\.5000; remove all but one"):
        speedrun.record([read_run(folder, "novels")], FACTS)


def test_a_run_that_went_back_is_refused(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "event", "event": "rollback", "bad_step": 7, "back_to": 5}) + "\n")
    with pytest.raises(MnemoError, match="went back after a divergence"):
        speedrun.record([read_run(folder, "novels")], FACTS)


def test_a_run_that_ended_early_is_refused(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:70]))
    with pytest.raises(MnemoError, match="ended at step 7,000 of 8,000"):
        speedrun.record([read_run(folder, "novels")], FACTS)


def test_the_picture_shows_both_curves_and_the_reference(folder: Path) -> None:
    svg = speedrun.picture(speedrun.record([read_run(folder, "novels")], FACTS), "novels")
    assert all(words in svg for words in ("bits per byte", "training", "goal", "to 1.012 at 8,000"))
    assert ("with dropout" in svg) == (RECIPE.model.dropout != DropoutConfig())


@pytest.mark.parametrize("name", ["novels", "enwik8"])
def test_stored_records_are_those_of_the_presets(name: str) -> None:
    """Records, pictures and the page agree. A run has the vocabulary of its corpus instead of the preset's."""
    stored, recipe = json.loads((DOCS / "measurements" / f"h200-{name}.json").read_text()), preset(f"speedrun-{name}")
    vocabulary = stored["recipe"]["model"]["vocab_size"]
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=vocabulary))
    assert stored["recipe"] == json.loads(json.dumps(to_json(recipe)))
    assert f"speedrun-{name}" in stored["what"] and all("H200" in run["hardware"] for run in stored["runs"])
    assert (DOCS / "pictures" / f"speedrun-{name}.svg").read_text() == speedrun.picture(stored, f"speedrun-{name}")
    scores, (_, slowest), page = scores_that_count(stored), training_seconds(stored), (DOCS / "speedrun.md").read_text()
    assert len(scores) == len(stored["runs"]) and slowest < {"novels": 450, "enwik8": 900}[name]
    assert fmean(scores) <= {"novels": 1.34, "enwik8": 1.06}[name]
    assert f"`speedrun-{name}` | **{fmean(scores):.3f}** | {seconds_in_words(stored)} | 38.1M | {len(scores)} |" in page
    assert all(f"**{score:.4f}**" in page for score in scores)
