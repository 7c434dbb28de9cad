"""The laptop budget: its grids, its text, its verdicts on made-up results, and its command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mnemo import cli
from mnemo.config import from_json
from mnemo.data.prepare import load
from mnemo.papers import CellResult, Experiment, Results, every_experiment, find_experiment
from mnemo.papers.laptop import EXPERIMENTS
from mnemo.papers.laptop.songs import LETTERS, SPLITS, VERSES, WORDS, songs, write_songs
from mnemo.papers.laptop.text import LONG, SEGMENT, SHORT
from mnemo.papers.runner import run_here
from mnemo.recipes.recipe import Recipe

VERSE = WORDS * (LETTERS + 1)
"""Characters of a verse: the distance over which it is repeated."""
NAMES = ["laptop-xl", "laptop-long-range", "laptop-rmt", "laptop-lamemo"]
LOSSES = {"none": 2.0, "memory": 1.0, "short": 1.9, "one-long": 1.1, "look-ahead": 0.9}
SOLVED = {"copy-rmt": 1.0, "copy-transformer-xl": 0.2}


def made_up(experiment: Experiment, value: Callable[[str], float]) -> Results:
    """Results whose value depends on the model, and a little on the seed."""
    cells = []
    for cell in experiment.cells("laptop"):
        name, seed = cell.name.rsplit("-seed", 1)
        found = value(name) - 0.001 * int(seed)
        values = {"scores": {"test": {"loss": found}}, "character_accuracy": found, "curve": [[1, found]]}
        cells.append(CellResult(cell=cell, values=values, seconds=1.0, hardware="", versions={}))
    return Results(budget="laptop", cells=cells)


def holds(name: str, values: dict[str, float]) -> list[bool | None]:
    experiment = find_experiment(name)
    return [each.holds for each in experiment.verdicts(made_up(experiment, values.__getitem__))]


def test_there_is_one_experiment_for_each_paper() -> None:
    assert [each.name for each in EXPERIMENTS] == NAMES
    papers = {each.paper for each in EXPERIMENTS}
    assert len(papers) == 4 and papers <= {each.paper for name, each in every_experiment().items() if name not in NAMES}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_every_model_has_three_seeds(experiment: Experiment) -> None:
    names = [cell.name for cell in experiment.cells("laptop")]
    models = {name.rsplit("-seed", 1)[0] for name in names}
    assert sorted(names) == sorted(f"{model}-seed{seed}" for model in models for seed in (1, 2, 3))


def test_experiments_share_their_measurements() -> None:
    cells = [cell for each in EXPERIMENTS for cell in each.cells("laptop")]
    assert len(cells) == 30 and len({cell.fingerprint for cell in cells}) == 21


def test_models_of_a_comparison_differ_in_their_memory_alone() -> None:
    cells = find_experiment("laptop-long-range").cells("laptop")[:3]
    recipes = [from_json(Recipe, cell.settings["recipe"]) for cell in cells]
    assert [each.model.memory.lengths(3) for each in recipes] == [(LONG,) * 3, (SHORT, LONG, SHORT), (SHORT,) * 3]
    same = [replace(each, model=replace(each.model, memory=recipes[0].model.memory)) for each in recipes]
    assert same[0] == same[1] == same[2]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("laptop-xl", {}, [True]),
        ("laptop-xl", {"memory": 2.0}, [False]),
        ("laptop-long-range", {}, [True, True, True]),
        ("laptop-long-range", {"one-long": 1.9}, [True, False, False]),
        ("laptop-long-range", {"short": 1.0}, [False, None, False]),
        ("laptop-rmt", {}, [True, True]),
        ("laptop-rmt", {"copy-rmt": 0.9}, [False, True]),
        ("laptop-rmt", {"copy-transformer-xl": 1.0}, [True, False]),
        ("laptop-lamemo", {}, [True, True]),
        ("laptop-lamemo", {"look-ahead": 1.1}, [True, False]),
    ],
)
def test_verdicts_follow_from_the_results(name: str, values: dict[str, float], expected: list[bool | None]) -> None:
    assert holds(name, LOSSES | SOLVED | values) == expected


def test_pages_can_be_made_from_nothing_and_from_everything() -> None:
    for experiment in EXPERIMENTS:
        nothing = Results(budget="laptop", cells=[])
        assert all(each.holds is None for each in experiment.verdicts(nothing))
        whole = made_up(experiment, (LOSSES | SOLVED).__getitem__)
        bars, curves = experiment.figures(whole)
        assert experiment.tables(whole)[0].rows
        for row in {cell.labels["model"] for cell in experiment.cells("laptop")}:
            assert row in bars.description and row in curves.description


def test_a_model_has_one_colour_in_all_figures() -> None:
    experiment = find_experiment("laptop-lamemo")
    bars, curves = experiment.figures(made_up(experiment, (LOSSES | SOLVED).__getitem__))
    found = [set(re.findall(r"var\(--(c\d)\)", figure.svg)) for figure in (bars, curves)]
    assert found[0] == found[1] == {"c0", "c1", "c4"}


def test_a_verse_is_repeated_beyond_segment_and_short_memory(tmp_path: Path) -> None:
    (text,) = songs("test", 1)
    assert len(text) == VERSE * VERSES and text == text[:VERSE] * VERSES
    assert 3 * SHORT + SEGMENT < VERSE < LONG
    write_songs(tmp_path / "songs", {"train": 3, "valid": 1, "test": 1})
    corpus = load(tmp_path / "songs")
    assert np.asarray(corpus.split("test").ids).tobytes() == text.encode()
    assert corpus.split("train").ids[:VERSE].tobytes() not in corpus.split("test").ids[:VERSE].tobytes()
    assert SPLITS.keys() == set(corpus.splits)


@pytest.mark.parametrize("name", [pytest.param("laptop-lamemo", marks=pytest.mark.thorough), "laptop-rmt"])
def test_the_self_test_passes(name: str, tmp_path: Path) -> None:
    experiment = find_experiment(name)
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    assert not ran.failures
    assert [each.cell for each in ran.found.results.cells] == experiment.cells("self-test")


def test_without_names_the_laptop_budget_runs_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[str], str, int, str]] = []

    def record(experiments, budget, out, *, jobs, device, print_line):
        asked.append(([each.name for each in experiments], budget, jobs, device))
        raise KeyboardInterrupt

    monkeypatch.setattr("mnemo.cli.reproduction.run_together", record)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    where = ["--out", str(tmp_path / "out"), "--site", str(tmp_path / "site")]
    assert cli.main(["reproduce", "--budget", "laptop", *where]) == 130
    assert cli.main(["reproduce", "laptop-xl", "--jobs", "2", *where]) == 130
    assert asked == [(NAMES, "laptop", 4, "cpu"), (["laptop-xl"], "laptop", 2, "cpu")]
    capsys.readouterr()
    for argv, words in (
        (["xl-ptb", "--budget", "laptop"], "xl-ptb has no budget laptop, only self-test, small, paper"),
        (["laptop-xl", "--budget", "small"], "laptop-xl has no budget small, only self-test, laptop\n"),
        (["laptop-xl", "--budget", "gpu"], "only self-test, laptop; mnemo reproduce --budget gpu runs gpu-xl, "),
        (["--budget", "self-test"], "--budget self-test needs the names of experiments"),
        (["laptop-xl", "xl-ptb"], "different budgets"),
        (["xl-ptb", "--budget", "huge"], "'huge' is not one of self-test, laptop, small, gpu, paper"),
        ([], "mnemo reproduce --budget laptop"),
    ):
        assert cli.main(["reproduce", *argv, *where]) == 2
        assert words in capsys.readouterr().err


def test_a_self_test_gives_no_verdict_and_keeps_its_old_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--out", str(tmp_path / "out"), "--site", str(tmp_path / "site")]
    assert cli.main(["reproduce", "lamemo-encoding", "--budget", "smoke", "--device", "cpu", *where]) == 0
    printed = capsys.readouterr().out
    assert "self-test: shows that the code runs, says nothing about the claim" in printed and "open:" not in printed
    page = (tmp_path / "site" / "lamemo-encoding" / "self-test" / "report.html").read_text(encoding="utf-8")
    assert "Self-test: shows that the code runs, says nothing about the claim." in page
    assert 'class="answer' not in page
    (tmp_path / "out" / "lamemo-encoding" / "self-test").rename(tmp_path / "out" / "lamemo-encoding" / "smoke")
    report = ["reproduce", "lamemo-encoding", "--budget", "self-test", "--report", "--json", *where]
    assert cli.main(report) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget"] == "self-test" and found["verdicts"] == []
    count = len(find_experiment("lamemo-encoding").cells("self-test"))
    assert f"{count} of {count} done" in Path(found["page"]).read_text(encoding="utf-8")
