"""The experiments on long-range memory: their self-tests, and verdicts on results that are made up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from mnemo.config import from_json
from mnemo.papers.experiment import PAPER_BUDGETS, Budget, Cell, CellResult, Experiment, Results
from mnemo.papers.long_range import EXPERIMENTS
from mnemo.papers.long_range.arrangement import ARRANGEMENT, NUMBER
from mnemo.papers.long_range.measuring import working_bytes
from mnemo.papers.long_range.profile import PROFILE, case
from mnemo.papers.long_range.short_memory import LENGTHS, SHORT_MEMORY
from mnemo.papers.long_range.words import WORDS
from mnemo.papers.runner import run_here
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe

GRIDS = [(experiment, budget) for experiment in EXPERIMENTS for budget in PAPER_BUDGETS]
PLANS = {"all 12": 1.60, "6 interleaved": 1.60, "6 last": 1.605, "6 first": 1.68, "2 interleaved": 1.608}
PLANS |= {"2 last": 1.61, "2 middle": 1.63, "2 first": 1.69, "1 last": 1.65, "1 first": 1.71, "none": 1.70}
"""Bits per character as the paper would have them on another corpus."""


def made_up(cell: Cell, values: Mapping[str, Any]) -> CellResult:
    return CellResult(cell=cell, values=dict(values), seconds=1.0, hardware="none", versions={})


def trained(cell: Cell, bits: float) -> CellResult:
    loss = bits * math.log(2)
    curve = [[10 * step, loss + 1 / step] for step in (1, 2, 3)]
    return made_up(cell, {"scores": {"test": {"loss": loss}}, "best_valid_loss": loss, "curve": curve})


def grid(experiment: Experiment, bits: Callable[[dict[str, Any]], float | None], budget: Budget = "small") -> Results:
    """Results of the cells for which `bits` of their labels is a number."""
    cells = [(cell, bits(cell.labels)) for cell in experiment.cells(budget) if cell.job == "train"]
    return Results(budget=budget, cells=[trained(cell, value) for cell, value in cells if value is not None])


def by_plan(plans: Mapping[str, float]) -> Callable[[dict[str, Any]], float | None]:
    """Seeds differ by 0.01, and the difference between plans by up to 0.0003."""

    def value(labels: dict[str, Any]) -> float | None:
        plan, seed = labels["plan"], labels["seed"]
        return plans[plan] + 0.01 * seed + 1e-4 * seed * (len(plan) % 4) if plan in plans else None

    return value


def holds(experiment: Experiment, results: Results) -> list[bool | None]:
    return [verdict.holds for verdict in experiment.verdicts(results)]


QUICK = ("long-profile",)


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(e, id=e.name, marks=() if e.name in QUICK else pytest.mark.thorough) for e in EXPERIMENTS],
)
def test_self_test(experiment: Experiment, tmp_path: Path) -> None:
    """Everything runs to its end, and decides nothing."""
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    results = ran.found.results
    assert ran.failures == ran.found.problems == ()
    assert [result.cell.name for result in results.cells] == [cell.name for cell in experiment.cells("self-test")]
    assert experiment.figures(results) and experiment.tables(results)
    assert not any("not measured" in verdict.ours for verdict in experiment.verdicts(results))
    assert set(holds(experiment, results)) == {None}


@pytest.mark.parametrize(("experiment", "budget"), GRIDS, ids=lambda value: getattr(value, "name", value))
def test_cells_have_names_and_settings_of_their_own(experiment: Experiment, budget: Budget) -> None:
    cells = experiment.cells(budget)
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    assert len({cell.fingerprint for cell in cells}) == len(cells)
    assert all(set(cell.after) <= set(names[:index]) for index, cell in enumerate(cells))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_an_empty_grid_leaves_every_verdict_open(experiment: Experiment) -> None:
    nothing = Results(budget="small", cells=[])
    assert set(holds(experiment, nothing)) == {None}
    assert experiment.figures(nothing) == experiment.tables(nothing) == []


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_cells_without_values_are_as_good_as_not_run(experiment: Experiment) -> None:
    hollow = Results(budget="small", cells=[made_up(cell, {}) for cell in experiment.cells("small")])
    assert set(holds(experiment, hollow)) == {None}
    assert experiment.figures(hollow) == experiment.tables(hollow) == []


@pytest.mark.parametrize("experiment", [ARRANGEMENT, NUMBER], ids=lambda experiment: experiment.name)
def test_results_like_the_papers_hold(experiment: Experiment) -> None:
    results = grid(experiment, by_plan(PLANS))
    assert set(holds(experiment, results)) == {True}
    assert all(figure.svg for figure in experiment.figures(results))
    (table,) = experiment.tables(results)
    assert table.rows[0][0] == "all 12" and table.rows[0][-1] == "0.9846"


def test_a_place_has_one_colour_in_all_figures() -> None:
    figures = ARRANGEMENT.figures(grid(ARRANGEMENT, by_plan(PLANS)))
    found: dict[str, set[str]] = {}
    for figure in figures[1:]:
        tips = re.findall(r'<use [^>]*fill="var\(--(c\d)\)"[^>]*><title>([^:<]*):', figure.svg)
        for color, label in tips:
            found.setdefault(label.split()[-1] if "all" not in label else "all", set()).add(color)
    assert found.keys() == {"all", "interleaved", "last", "first", "middle", "none"}
    assert all(len(colors) == 1 for colors in found.values()) and len(set.union(*found.values())) == len(found)


@pytest.mark.parametrize("experiment", [ARRANGEMENT, NUMBER], ids=lambda experiment: experiment.name)
def test_no_two_lines_of_a_figure_look_alike(experiment: Experiment) -> None:
    _, *figures = experiment.figures(grid(experiment, by_plan(PLANS)))
    for figure in figures:
        strokes = [each.attrib for each in ElementTree.fromstring(figure.svg).iter() if each.get("stroke-width") == "2"]
        num_lines = len({row[0] for row in figure.numbers.rows})
        legend = [(stroke["stroke"], stroke.get("stroke-dasharray")) for stroke in strokes][-num_lines:]
        assert len(set(legend)) == num_lines > 1


def test_every_claim_about_arrangements_can_fail() -> None:
    wrong = {
        "none": 1.59,
        "6 first": 1.64,
        "6 interleaved": 1.66,
        "6 last": 1.66,
        "2 interleaved": 1.66,
        "2 first": 1.60,
        "2 middle": 1.60,
        "1 first": 1.62,
    }
    for index, (plan, value) in enumerate(wrong.items()):
        found = holds(ARRANGEMENT, grid(ARRANGEMENT, by_plan(PLANS | {plan: value})))
        assert found[index] is False


def test_seeds_that_disagree_and_plans_that_are_missing_decide_nothing() -> None:
    def disagree(labels: dict[str, Any]) -> float:
        return 1.66 - 0.02 * labels["seed"] if labels["plan"] == "6 first" else PLANS[labels["plan"]] - 0.02

    assert holds(ARRANGEMENT, grid(ARRANGEMENT, disagree))[1] is None
    without = {plan: value for plan, value in PLANS.items() if plan != "1 last"}
    found = ARRANGEMENT.verdicts(grid(ARRANGEMENT, by_plan(without)))
    assert [found[index].holds for index in (1, 7)] == [None, None]
    assert found[1].ours == "not measured yet: 1 last"


def test_one_seed_decides_nothing_alone() -> None:
    found = NUMBER.verdicts(grid(NUMBER, lambda labels: PLANS["all 12"] + 0.1 * (labels["share"] == "none"), "paper"))
    assert {verdict.holds for verdict in found} == {None}
    assert found[0].ours.endswith("preliminary, n = 1")


def test_where_memory_gains_nothing_no_plan_is_called_equal() -> None:
    found = ARRANGEMENT.verdicts(grid(ARRANGEMENT, by_plan(PLANS | {"none": 1.60})))
    assert [verdict.holds for verdict in found[2:5]] == [None] * 3
    assert "no clear gain of all 12 over none" in found[2].ours


def test_toys_decide_nothing() -> None:
    results = grid(ARRANGEMENT, lambda labels: 1.0 + labels["long"], budget="self-test")
    assert set(holds(ARRANGEMENT, results)) == {None}


def test_the_two_grids_share_their_cells() -> None:
    """So that results of one are results of the other."""
    for budget in PAPER_BUDGETS:
        every = {cell.name: cell.fingerprint for cell in ARRANGEMENT.cells(budget)}
        assert {cell.name: cell.fingerprint for cell in NUMBER.cells(budget)}.items() <= every.items()


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("long-enwik8-12-first", "12-first-seed1111"),
        ("long-enwik8-4-interleaved", "4-interleaved-seed1111"),
        ("long-enwik8-0", "none-seed1111"),
    ],
)
def test_paper_cells_are_the_presets(name: str, cell: str) -> None:
    (found,) = (one for one in ARRANGEMENT.cells("paper") if one.name == cell)
    recipe = from_json(Recipe, found.settings["recipe"])
    assert recipe == preset(name)
    assert found.settings["scores"]["test"]["memory"] == 6000


def test_words() -> None:
    plans = {"all 12": 6.0, "2 interleaved": 6.01, "2 last": 6.02, "2 first": 6.13, "none": 6.2}
    assert holds(WORDS, grid(WORDS, by_plan(plans))) == [True, True, True]
    worse = plans | {"2 last": 6.15, "2 first": 5.98}
    results = grid(WORDS, by_plan(worse))
    assert holds(WORDS, results) == [True, False, False]
    assert [row[-1] for row in WORDS.tables(results)[0].rows] == ["18.3", "18.4", "18.6", "20.1", "-"]


def test_words_whose_long_memories_are_useless_show_nothing() -> None:
    assert holds(WORDS, grid(WORDS, lambda labels: 6.64)) == [None, None, False]
    without = grid(WORDS, lambda labels: 6.64 if labels["plan"] != "none" else None)
    assert holds(WORDS, without) == [None, None, False]


def profiled(seconds: Mapping[int, float], gigabytes: Mapping[int, float], budget: Budget = "small") -> Results:
    """The published formulation; Mnemo's is equal."""
    plans = [
        {"long": long, "working_bytes": gigabytes[long] * 1e9, "seconds_per_token": seconds[long] / 1e6}
        for long in seconds
    ]
    return Results(budget=budget, cells=[made_up(cell, {"plans": plans}) for cell in PROFILE.cells(budget)])


def test_the_papers_profile_holds() -> None:
    seconds = {24: 405.0, 12: 273.0, 4: 191.0, 1: 155.0, 0: 143.0}
    gigabytes = {24: 3.4, 12: 2.8, 4: 1.1, 1: 0.5, 0: 0.2}
    results = profiled(seconds, gigabytes)
    assert set(holds(PROFILE, results)) == {True}
    assert "2.12x" in PROFILE.verdicts(results)[-1].ours
    assert [row[0] for row in PROFILE.tables(results)[0].rows] == [24, 12, 4, 1, 0]
    assert len(PROFILE.figures(results)) == 2


def test_a_profile_that_rises_does_not() -> None:
    seconds = {24: 300.0, 12: 273.0, 4: 191.0, 1: 200.0, 0: 143.0}
    gigabytes = {24: 2.0, 12: 1.8, 4: 1.1, 1: 0.5, 0: 0.5}
    assert set(holds(PROFILE, profiled(seconds, gigabytes))) == {False}
    assert set(holds(PROFILE, profiled(seconds, gigabytes, "self-test"))) == {None}


@pytest.mark.parametrize("formulation", ["mnemo", "published"])
def test_activations_shrink_with_the_long_layers(formulation: Any) -> None:
    sizes = [
        working_bytes(replace(case("self-test"), num_long=count), formulation, torch.device("cpu"))
        for count in (6, 3, 0)
    ]
    assert sizes[0] > sizes[1] > sizes[2] > 0


def test_a_machine_that_is_too_small_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mnemo.model.memory_limits.memory_bytes", lambda device: 1000)
    ran = run_here(PROFILE, "self-test", tmp_path, device="cpu")
    assert "a training step of 6 layers needs at least" in ran.failures[0].reason
    assert ran.found.results.cells == []


def swept(bits: Mapping[int, float], rates: Mapping[int, float]) -> Results:
    def value(labels: dict[str, Any]) -> float:
        return bits[labels["short"]] + 1e-4 * labels["seed"] * (labels["short"] % 3)

    results = grid(SHORT_MEMORY, value)
    speed = SHORT_MEMORY.cells("small")[-1]
    paces = {str(length): {"tokens_per_second": rate, "peak_bytes": None} for length, rate in rates.items()}
    return Results(budget="small", cells=[*results.cells, made_up(speed, {"paces": paces})])


def test_a_best_short_memory_inside_the_sweep() -> None:
    lengths = LENGTHS["small"]
    bits = {length: 1.6 + 0.02 * abs(math.log2(length / 256)) for length in lengths}
    results = swept(bits, {length: 1e6 - 100 * length for length in lengths})
    assert holds(SHORT_MEMORY, results) == [True, True, True]
    assert [figure.slug for figure in SHORT_MEMORY.figures(results)] == ["quality", "speed", "trade"]
    assert len(SHORT_MEMORY.tables(results)[0].rows) == len(lengths)


def test_a_sweep_whose_end_is_best() -> None:
    lengths, rates = LENGTHS["small"], dict.fromkeys(LENGTHS["small"], 1e6)
    longest = {length: 1.6 - 0.01 * math.log2(length) for length in lengths}
    assert holds(SHORT_MEMORY, swept(longest, rates)) == [False, True, None]
    shortest = {length: 1.6 + 0.01 * math.log2(length) for length in lengths}
    assert holds(SHORT_MEMORY, swept(shortest, rates)) == [False, False, False]
    half = Results(budget="small", cells=swept(longest, rates).cells[:5])
    assert holds(SHORT_MEMORY, half) == [None, None, None]
