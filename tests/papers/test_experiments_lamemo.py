"""LaMemo's experiments: their grids, their verdicts on made-up results, and every self-test."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marks import few

from mnemo.config import from_json, to_json
from mnemo.cost.training_cost import training_bytes
from mnemo.memory import Plan
from mnemo.papers.experiment import PAPER_BUDGETS, Budget, CellResult, Results
from mnemo.papers.jobs import Place
from mnemo.papers.lamemo import EXPERIMENTS, ablation, encoding, flops, models
from mnemo.papers.lamemo.models import COMPRESSIVE, INFINITE, LAMEMO, TRANSFORMER, TRANSFORMER_XL
from mnemo.papers.needs import recipes_of
from mnemo.papers.runner import run_here
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe
from mnemo.training import Unwatched

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
NAMES = list(BY_NAME)
RANKED = (TRANSFORMER, TRANSFORMER_XL, COMPRESSIVE, INFINITE, LAMEMO)
"""Worst first, as the paper has it."""
Values = Callable[[dict[str, Any]], dict[str, Any] | None]
"""From the labels of a cell to its values; None if it is not measured yet."""


def made_up(name: str, budget: Budget, values: Values) -> Results:
    """Results of a grid whose cells give these values."""
    found = [(cell, values(cell.labels)) for cell in BY_NAME[name].cells(budget)]
    cells = [
        CellResult(cell=cell, values=each, seconds=1.0, hardware="none", versions={})
        for cell, each in found
        if each is not None
    ]
    return Results(budget=budget, cells=cells)


def trained(loss: float, names: tuple[str, ...] = ("valid", "test")) -> dict[str, Any]:
    return {
        "parameters": 1000,
        "curve": [[1, loss + 1], [2, loss]],
        "train_curve": [[1, loss + 1], [2, loss]],
        "scores": {name: {"loss": loss} for name in names},
    }


def judged(name: str, budget: Budget, values: Values) -> list[bool | None]:
    experiment, results = BY_NAME[name], made_up(name, budget, values)
    assert experiment.tables(results)
    assert all(figure.svg and figure.numbers.rows for figure in experiment.figures(results))
    return [verdict.holds for verdict in experiment.verdicts(results)]


def noise(labels: dict[str, Any], size: float) -> float:
    """Seeds differ, and not alike for all models."""
    return size * (labels["seed"] % 2) * (1 + len(labels["model"]) % 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", PAPER_BUDGETS)
def test_cells_are_plain_data_with_names_of_their_own_and_follow_what_they_need(name: str, budget: Budget) -> None:
    cells = BY_NAME[name].cells(budget)
    seen: set[str] = set()
    for cell in cells:
        assert json.loads(json.dumps(cell.settings)) == cell.settings
        assert cell.name not in seen and Path(cell.name).name == cell.name
        assert set(cell.after) <= seen
        seen.add(cell.name)
    assert cells


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", PAPER_BUDGETS)
def test_nothing_measured_leaves_every_verdict_open(name: str, budget: Budget) -> None:
    experiment, nothing = BY_NAME[name], Results(budget=budget, cells=[])
    verdicts = experiment.verdicts(nothing)
    assert verdicts and {verdict.holds for verdict in verdicts} == {None}
    assert not experiment.figures(nothing) and not experiment.samples(nothing)
    experiment.tables(nothing)


@pytest.mark.parametrize("name", NAMES)
def test_cells_without_values_leave_every_verdict_open(name: str) -> None:
    experiment, hollow = BY_NAME[name], made_up(name, "small", lambda labels: {})
    assert {verdict.holds for verdict in experiment.verdicts(hollow)} == {None}
    assert not experiment.figures(hollow) and not experiment.samples(hollow)
    experiment.tables(hollow)


def test_a_recipe_of_paper_is_the_preset() -> None:
    rows = {"": LAMEMO, "-transformer": TRANSFORMER, "-transformer-xl": TRANSFORMER_XL}
    words = rows | {"-compressive": COMPRESSIVE, "-infinite": INFINITE}
    for name, expected in (("lamemo-wikitext103", words), ("lamemo-enwik8", rows), ("lamemo-text8", rows)):
        cells = {cell.labels["model"]: cell for cell in BY_NAME[name].cells("paper")}
        for suffix, model in expected.items():
            recipe = preset(f"{name}{suffix}")
            assert cells[model].settings["recipe"] == to_json(
                replace(recipe, train=replace(recipe.train, precision="bf16"))
            )


def test_ablations_of_paper_are_the_presets() -> None:
    rows = {
        "": ablation.FULL,
        "-no-interpolation": ablation.NO_INTERPOLATION,
        "-no-lookahead": ablation.NO_LOOKAHEAD,
        "-signed": ablation.SIGNED,
    }
    for suffix, row in rows.items():
        found = [cell for cell in BY_NAME["lamemo-ablation"].cells("paper") if cell.labels["model"] == row]
        memories = {json.dumps(cell.settings["recipe"]["model"]["memory"]) for cell in found}
        assert memories == {json.dumps(to_json(preset(f"lamemo-wikitext103{suffix}").model.memory))}
        assert len({cell.labels["seed"] for cell in found}) == 3


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("lamemo-encoding", "lamemo-flops")])
def test_small_models_differ_in_nothing_but_memory_and_seed(name: str) -> None:
    recipes = [
        from_json(Recipe, cell.settings["recipe"]) for cell in BY_NAME[name].cells("small") if "recipe" in cell.settings
    ]
    alike = {
        replace(each, model=replace(each.model, memory=Plan()), train=replace(each.train, seed=0)) for each in recipes
    }
    assert len(alike) == 1
    assert len({(each.model.memory, each.train.seed) for each in recipes}) == len(recipes)


def test_what_a_device_must_hold_is_known_of_every_memory() -> None:
    cells = {cell.labels["model"]: cell for cell in BY_NAME["lamemo-novels"].cells("small")}
    needed = {model: training_bytes(next(recipes_of(cell))) for model, cell in cells.items()}
    assert needed[TRANSFORMER] < needed[TRANSFORMER_XL] < needed[COMPRESSIVE] < 2**32
    assert needed[TRANSFORMER_XL] < needed[LAMEMO] and needed[TRANSFORMER_XL] < needed[INFINITE]


def test_the_novels_have_several_seeds() -> None:
    seeds = {model: set() for model in RANKED}
    for cell in BY_NAME["lamemo-novels"].cells("small"):
        seeds[cell.labels["model"]].add(cell.labels["seed"])
    assert len(seeds[LAMEMO] & seeds[TRANSFORMER_XL]) == 3 and len(seeds[TRANSFORMER] & seeds[TRANSFORMER_XL]) == 2


def ranked(labels: dict[str, Any], step: float, size: float = 1e-4) -> dict[str, Any]:
    """Losses that fall by `step` from each model to the next, in the order of the paper."""
    return trained(2.0 - step * RANKED.index(labels["model"]) + noise(labels, size))


@pytest.mark.parametrize("name", ["lamemo-novels", "lamemo-wikitext103", "lamemo-enwik8", "lamemo-text8"])
def test_comparisons_hold_where_losses_fall_fail_where_they_rise_and_are_open_in_between(name: str) -> None:
    count = 4 if name in ("lamemo-novels", "lamemo-wikitext103") else 2
    assert judged(name, "small", lambda labels: ranked(labels, 0.1)) == [True] * count
    assert judged(name, "small", lambda labels: ranked(labels, -0.1)) == [False] * count
    assert judged(name, "small", lambda labels: ranked(labels, 1e-5, 0.02)) == [None] * count
    only = {TRANSFORMER_XL, LAMEMO}
    half = judged(name, "small", lambda labels: ranked(labels, 0.1) if labels["model"] in only else None)
    assert half[:2] == [None, True] and set(half[2:]) <= {None}


def test_a_gain_that_seeds_do_not_agree_on_is_open() -> None:
    def disagreeing(labels: dict[str, Any]) -> dict[str, Any]:
        other = labels["model"] == LAMEMO and labels["seed"] % 2
        return ranked(labels, 0.01) if not other else trained(2.02)

    assert judged("lamemo-novels", "small", disagreeing)[1] is not True


def test_one_seed_is_decided_with_the_spread_of_the_other_pairs() -> None:
    """At `small`, words have one seed of the compressed and of the unbounded memory."""
    results = made_up("lamemo-wikitext103", "small", lambda labels: ranked(labels, 0.1))
    found = BY_NAME["lamemo-wikitext103"].verdicts(results)
    assert [verdict.holds for verdict in found] == [True] * 4
    assert all(verdict.ours.endswith("preliminary, n = 1") for verdict in found[2:])
    assert set(judged("lamemo-enwik8", "paper", lambda labels: ranked(labels, 0.1))[:2]) == {None}


def test_self_tests_runs_decide_nothing() -> None:
    assert set(judged("lamemo-novels", "self-test", lambda labels: ranked(labels, 0.1))) == {None}


def test_published_scores_are_reproduced_or_not() -> None:
    numbers = {TRANSFORMER: 29.14, TRANSFORMER_XL: 24.56, COMPRESSIVE: 24.41, INFINITE: 24.22, LAMEMO: 23.77}
    exact = judged("lamemo-wikitext103", "paper", lambda labels: trained(math.log(numbers[labels["model"]])))
    assert exact == [None] * 4 + [True] * 5
    off = judged("lamemo-wikitext103", "paper", lambda labels: trained(math.log(1.1 * numbers[labels["model"]])))
    assert off == [None] * 4 + [False] * 5


def test_a_model_without_a_finite_score_is_left_out() -> None:
    def lost(labels: dict[str, Any]) -> dict[str, Any]:
        return {"scores": {"test": {"loss": None}}} if labels["model"] == LAMEMO else ranked(labels, 0.1)

    assert judged("lamemo-novels", "small", lost) == [True, None, None, None]


ORDER = (ablation.NO_INTERPOLATION, ablation.NO_LOOKAHEAD, ablation.FULL)


def ablated(labels: dict[str, Any], step: float, failed: dict[str, Any] | None) -> dict[str, Any] | None:
    if labels["model"] == ablation.SIGNED:
        return failed
    return {"diverged": None} | trained(2.0 - step * ORDER.index(labels["model"]) + noise(labels, 1e-4))


def test_ablations() -> None:
    diverged = {"diverged": "the loss is nan", "train_curve": [[1, 5.0]]}
    assert judged("lamemo-ablation", "small", lambda labels: ablated(labels, 0.1, diverged)) == [True] * 4
    assert judged("lamemo-ablation", "small", lambda labels: ablated(labels, 0.1, trained(3.0)))[3] is True
    assert judged("lamemo-ablation", "small", lambda labels: ablated(labels, -0.1, trained(2.0))) == [False] * 4
    assert judged("lamemo-ablation", "small", lambda labels: ablated(labels, 1e-6, None)) == [False] * 3 + [None]


def test_g_is_the_sum_over_pairs_of_different_frequencies() -> None:
    frequencies = encoding.frequencies(8).tolist()
    pairs = [(k, m) for k in frequencies for m in frequencies if k != m]
    for x in (-3.0, 0.5, 7.0):
        expected = sum(math.sin(k * x) * math.cos(m * x) for k, m in pairs)
        assert math.isclose(
            float(encoding.odd_part(torch.tensor([x], dtype=torch.float64), 8)), expected, abs_tol=1e-12
        )


def test_measured_variance_is_that_of_all_pairs_and_not_the_published_one() -> None:
    at = torch.tensor([-3.0, 3.0], dtype=torch.float64)
    x = encoding.draw(10_000, 64, 0.1, seed=1)
    measured = (x @ encoding.encode(at, 64).T).var(0)
    torch.testing.assert_close(measured, encoding.variance(at, 64, 0.1), rtol=0.05, atol=0)
    assert encoding.published_variance(at, 64, 0.1)[0] < 0


def test_the_encoding_fails_for_the_paper_s_reason_but_not_by_its_formula() -> None:
    odd = {"points": [[-1.0, -9.0], [1.0, 9.0]], "slope": 93.0, "published_slope": 95.9, "published_limit": 111.0}
    names = ("signed", "absolute", "exact", "published")
    sides = {"distances": [-3.0, 3.0], "signed": [74.0, 143.0], "absolute": [143.0, 143.0]}
    sides |= {"exact": [74.0, 143.0], "published": [-2.0, 66.0]}
    flat = {"distances": [-3.0, 3.0]} | {name: [32.0, 32.5] for name in names}

    def values(variances: dict[str, Any], slope: float) -> Values:
        return lambda labels: odd | {"slope": slope} if labels["kind"] == "g" else variances

    assert judged("lamemo-encoding", "small", values(sides, 93.0)) == [True, True, True, False]
    assert judged("lamemo-encoding", "small", values(flat, 10.0)) == [False, False, False, True]


def extrapolated(labels: dict[str, Any], gap: Callable[[int], float]) -> dict[str, Any]:
    """A loss that falls until m = 7, and LaMemo's below it by a gap."""
    losses = {m: 2.0 - 0.02 * min(m, 7) - (gap(m) if labels["model"] == LAMEMO else 0) for m in range(1, 11)}
    return {"scores": {f"m{m}": {"loss": loss + noise(labels, 1e-4)} for m, loss in losses.items()}}


def test_extrapolation() -> None:
    name = "lamemo-extrapolation"
    assert judged(name, "small", lambda labels: extrapolated(labels, lambda m: 0.01 * min(m, 7))) == [True] * 4
    assert judged(name, "small", lambda labels: extrapolated(labels, lambda m: -0.01 * m)) == [False, False, True, True]
    none = judged(
        name, "small", lambda labels: extrapolated(labels, lambda m: 0.1) if labels["model"] == LAMEMO else None
    )
    assert none == [None, None, True, None]


def test_one_seed_does_not_show_that_a_gap_grows() -> None:
    results = made_up("lamemo-extrapolation", "paper", lambda labels: extrapolated(labels, lambda m: 0.01 * m))
    found = BY_NAME["lamemo-extrapolation"].verdicts(results)[1]
    assert found.holds is None and "ppl at m = 10 against" in found.ours and found.ours.endswith("preliminary, n = 1")


def test_a_memory_that_goes_on_gaining_has_not_saturated() -> None:
    def falling(labels: dict[str, Any]) -> dict[str, Any]:
        return {"scores": {f"m{m}": {"loss": 2.0 - 0.05 * m} for m in range(1, 11)}}

    assert judged("lamemo-extrapolation", "small", falling)[2:] == [False, False]


def test_a_memory_that_breaks_down_has_nothing_to_saturate() -> None:
    broken = made_up(
        "lamemo-extrapolation", "small", lambda labels: extrapolated(labels, lambda m: -2.0 if m > 3 else 0.0)
    )
    ahead, static = BY_NAME["lamemo-extrapolation"].verdicts(broken)[2:]
    assert ahead.holds is None and "nothing to saturate" in ahead.ours
    assert static.holds is True


def looked(values: dict[str, Any] | dict[str, dict[str, Any]]) -> Values:
    """Training gives something; looking at a model gives these values, by model where they are named."""
    return lambda labels: values.get(labels["look"], values) if "look" in labels else trained(2.0)


def test_alpha() -> None:
    old_look_ahead = {"layers": [0, 1, 2, 3], "segments": 100}
    rows = [[0.99, 0.99, 0.99, 0.99], [0.9, 0.9, 0.9, 0.95], [0.2, 0.4, 0.6, 0.9], [0.1, 0.3, 0.5, 0.9]]
    assert judged("lamemo-alpha", "small", looked(old_look_ahead | {"alpha": rows})) == [True] * 3
    upside_down = [row[::-1] for row in rows[::-1]]
    assert judged("lamemo-alpha", "small", looked(old_look_ahead | {"alpha": upside_down})) == [False] * 3
    flat = [[0.5] * 4] * 4
    assert judged("lamemo-alpha", "small", looked(old_look_ahead | {"alpha": flat})) == [False, None, None]


def test_attention() -> None:
    far, near = [[0, 0.3], [50, 0.02], [95, 0.02]], [[0, 0.5], [50, 0.001], [95, 0.001]]
    holds = {LAMEMO: {"maxima": far}, TRANSFORMER_XL: {"maxima": near}}
    fails = {LAMEMO: {"maxima": near}, TRANSFORMER_XL: {"maxima": far}}
    assert judged("lamemo-attention", "small", looked(holds)) == [True]
    assert judged("lamemo-attention", "small", looked(fails)) == [False]
    for factor, expected in ((1.0, False), (1.004, None), (1.09, None), (1.11, True)):
        further = [[begin, factor * value] for begin, value in near]
        alike = {LAMEMO: {"maxima": further}, TRANSFORMER_XL: {"maxima": near}}
        assert judged("lamemo-attention", "small", looked(alike)) == [expected]


def test_flops_are_those_of_table_1_but_for_infinity_former() -> None:
    name = "lamemo-flops"
    results = [
        CellResult(cell=cell, values=flops.count(cell.settings, None), seconds=0.0, hardware="", versions={})  # type: ignore[arg-type]
        for cell in BY_NAME[name].cells("paper")
    ]
    verdicts = BY_NAME[name].verdicts(Results(budget="paper", cells=results))
    assert [verdict.holds for verdict in verdicts] == [True, True, True, False, True, True]
    quadratic = [
        replace(result, values=result.values | {"multiply_adds": 1e6 * (result.labels["memory"] or 1) ** 2})
        if result.labels["model"] == LAMEMO
        else result
        for result in results
    ]
    assert BY_NAME[name].verdicts(Results(budget="paper", cells=quadratic))[-1].holds is False


def sampled(*shares: float) -> dict[str, Any]:
    share = list(shares)
    return {"begins": [7], "texts": ["upon a time"], "repetition": share, "distinct": share}


def test_samples() -> None:
    few, many = sampled(0.01, 0.02, 0.01), sampled(0.21, 0.2, 0.22)
    assert judged("lamemo-samples", "paper", looked({LAMEMO: few, TRANSFORMER_XL: many})) == [True]
    assert judged("lamemo-samples", "paper", looked({LAMEMO: many, TRANSFORMER_XL: few})) == [False]
    assert judged("lamemo-samples", "paper", looked({LAMEMO: few, TRANSFORMER_XL: sampled(0.02, 0.0, 0.02)})) == [None]
    assert judged("lamemo-samples", "small", looked({LAMEMO: few, TRANSFORMER_XL: many})) == [None]
    shown = BY_NAME["lamemo-samples"].samples(
        made_up("lamemo-samples", "small", looked({LAMEMO: few, TRANSFORMER_XL: many}))
    )
    assert [sample.title for sample in shown] == ["Prompt 1", "LaMemo, prompt 1", "Transformer-XL, prompt 1"]


# Experiments whose code another self-test covers (lamemo-wikitext103), and one that takes long.
FURTHER = (
    *("lamemo-enwik8", "lamemo-text8", "lamemo-novels", "lamemo-flops"),
    *("lamemo-wikitext103", "lamemo-encoding", "lamemo-extrapolation"),
)


@pytest.mark.parametrize("name", few(NAMES, lambda name: name not in FURTHER))
def test_the_self_test_passes(name: str, tmp_path: Path) -> None:
    experiment = BY_NAME[name]
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    results = ran.found.results
    assert not ran.failures and not ran.found.problems
    assert len(results.cells) == len(experiment.cells("self-test"))
    assert all(verdict.holds is None and "not measured" not in verdict.ours for verdict in experiment.verdicts(results))
    assert experiment.tables(results) and (experiment.figures(results) or experiment.samples(results))
    assert bool(experiment.samples(results)) == (name == "lamemo-samples")


def test_training_that_diverges_is_a_result(tmp_path: Path) -> None:
    first = BY_NAME["lamemo-ablation"].cells("self-test")[0]
    recipe = replace(models.SELF_TEST, lr=1e30, steps=4).recipe(models.memory_of(LAMEMO, models.SELF_TEST.length))
    place = Place(tmp_path, tmp_path, torch.device("cpu"), Unwatched())
    values = ablation.train_or_diverge(first.settings | {"recipe": to_json(recipe)}, place)
    assert values["diverged"] and "scores" not in values
    assert all(math.isfinite(loss) for _, loss in values["train_curve"])
