"""Experiments of the Recurrent Memory Transformer: every self-test passes, verdicts follow from results alone."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch

from mnemo.config import from_json
from mnemo.model import Model
from mnemo.papers import CellResult, Experiment, Results
from mnemo.papers.experiment import PAPER_BUDGETS
from mnemo.papers.jobs import Place
from mnemo.papers.rmt import EXPERIMENTS, jobs, maps
from mnemo.papers.rmt.published import RETRIEVAL, RMT, XL
from mnemo.papers.runner import run_here
from mnemo.papers.store import grid_folder
from mnemo.recipes.recipe import Recipe
from mnemo.training import Diverged, Unwatched

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


def made_up(experiment: Experiment, budget, value, keep=lambda cell: True) -> Results:
    """Results of a whole grid, from a function of labels to values."""
    cells = [cell for cell in experiment.cells(budget) if keep(cell)]
    found = [
        CellResult(cell=cell, values=value(cell.labels), seconds=1.0, hardware="none", versions={}) for cell in cells
    ]
    return Results(budget=budget, cells=found)


def verdict(experiment: Experiment, results: Results, words: str):
    found = [each for each in experiment.verdicts(results) if words in each.claim]
    assert len(found) == 1, [each.claim for each in experiment.verdicts(results)]
    return found[0]


def accuracy(by_model):
    return lambda labels: {"character_accuracy": by_model(labels), "answer_accuracy": by_model(labels)}


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("budget", PAPER_BUDGETS)
def test_cells_are_plain_and_their_recipes_can_be_read(name, budget):
    cells = BY_NAME[name].cells(budget)
    assert cells and len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert json.loads(json.dumps(cell.settings)) == cell.settings
        assert cell.name == cell.name.lower() and "/" not in cell.name and " " not in cell.name
        for stage in cell.settings.get("stages", [cell.settings.get("recipe")]):
            assert isinstance(from_json(Recipe, stage), Recipe)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("budget", PAPER_BUDGETS)
def test_nothing_measured_leaves_every_verdict_open(name, budget):
    experiment, empty = BY_NAME[name], Results(budget=budget, cells=[])
    verdicts = experiment.verdicts(empty)
    assert verdicts and all(each.holds is None for each in verdicts)
    assert experiment.figures(empty) == []
    assert all(table.headers for table in experiment.tables(empty))


# Experiments whose code the self-tests of copy and the language model cover.
TASKS = ("rmt-reverse", "rmt-half-memory", "rmt-passkey", "rmt-long-copy", "rmt-retrieval", "rmt-associative-recall")
FURTHER = (*TASKS, "rmt-context", "rmt-quadratic", "rmt-state-size")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in FURTHER else ()) for name in BY_NAME]
)
def test_self_tests_runs_pass_and_decide_nothing(name, tmp_path):
    experiment = BY_NAME[name]
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    assert ran.failures == () and ran.found.problems == () and not ran.interrupted
    results = ran.found.results
    assert len(results.cells) == len(experiment.cells("self-test"))
    verdicts = experiment.verdicts(results)
    assert all(each.holds is None and "missing" not in each.ours for each in verdicts), verdicts
    figures, tables = experiment.figures(results), experiment.tables(results)
    assert figures and all(figure.svg.startswith("<svg") for figure in figures)
    assert any(table.rows for table in tables)


def by_model(rmt: float, xl: float, other: float = 0.1):
    """Accuracies of several segments; all models solve a single one."""
    values = {RMT: rmt, XL: xl}
    return accuracy(lambda labels: 1.0 if labels["segments"] == 1 else values.get(labels["model"], other))


@pytest.mark.parametrize(("name", "count"), [("rmt-copy", 9), ("rmt-reverse", 4)])
def test_rmt_solves_and_transformer_xl_is_far_below(name, count):
    experiment = BY_NAME[name]
    results = made_up(experiment, "small", by_model(0.995, 0.3))
    assert all(each.holds for each in experiment.verdicts(results)), experiment.verdicts(results)
    solved = verdict(experiment, results, f"in {count} segments (every run")
    assert f"RMT in {count} segments 0.995 ± 0.000 accuracy" in solved.ours and solved.paper.startswith("1")
    assert experiment.figures(results)[0].numbers.rows


@pytest.mark.parametrize(("name", "count"), [("rmt-copy", 9), ("rmt-reverse", 4)])
def test_verdicts_fail_where_rmt_does_not_solve_or_transformer_xl_keeps_up(name, count):
    experiment = BY_NAME[name]
    short_of = made_up(experiment, "small", by_model(0.989, 0.3))
    assert verdict(experiment, short_of, f"in {count} segments (every run").holds is False
    keeps_up = made_up(experiment, "small", by_model(1.0, 0.95))
    assert verdict(experiment, keeps_up, f"in {count} segments (mean").holds is False
    assert verdict(experiment, keeps_up, f"in {count} segments, also with the published depth").holds is False
    learned = made_up(experiment, "small", by_model(1.0, 0.3, other=0.4))
    assert verdict(experiment, learned, "is guessed").holds is False


def test_one_seed_of_two_leaves_a_comparison_open():
    experiment = BY_NAME["rmt-copy"]
    results = made_up(experiment, "small", by_model(1.0, 0.3), keep=lambda cell: cell.labels["seed"] == 1)
    found = verdict(experiment, results, "RMT solves copy in 9 segments")
    assert found.holds is None and "runs are missing; preliminary, n = 1" in found.ours


def test_models_of_the_published_depth_do_not_count_among_the_others():
    experiment = BY_NAME["rmt-copy"]
    values = accuracy(lambda labels: 0.2 if labels["deep"] else by_model(1.0, 0.3)(labels)["character_accuracy"])
    results = made_up(experiment, "small", values)
    assert verdict(experiment, results, "RMT solves copy in 9 segments").holds is True
    assert verdict(experiment, results, "also with the published depth").holds is False
    rows = experiment.tables(results)[0].rows
    assert {row[2] for row in rows if row[1] == 9} == {2, 4}


def test_learning_curves_are_those_of_the_most_telling_number_of_segments():
    experiment = BY_NAME["rmt-copy"]

    def values(labels):
        curve = [[100, 2.3], [200, 2.0 if labels["model"] == XL else 0.01 * labels["seed"]]]
        return by_model(1.0, 0.3)(labels) | {"curve": curve}

    figure = {each.slug: each for each in experiment.figures(made_up(experiment, "small", values))}["copy-learning"]
    assert "9 segments" in figure.title
    assert ("RMT in 9 segments", 200.0, pytest.approx(0.015), 0.01, 0.02) in figure.numbers.rows


def test_retrieval_is_shown_at_real_numbers_of_segments():
    assert {count for counts in RETRIEVAL.values() for count in counts} == {1, 2, 3, 5}
    experiment = BY_NAME["rmt-retrieval"]
    cut = {}
    for cell in experiment.cells("small"):
        recipe = from_json(Recipe, cell.settings["stages"][-1])
        assert recipe.data.task is not None
        cut[cell.labels["segments"]] = (recipe.train.segment, recipe.data.task.num_segments(recipe.train.segment))
    assert cut == {1: (10, 1), 2: (5, 2), 3: (4, 3), 5: (2, 5)}
    assert any("two more points at wrong places" in note for note in experiment.notes)


def test_all_models_of_a_comparison_take_the_same_steps():
    for name in ("rmt-copy", "rmt-reverse", "rmt-retrieval", "rmt-half-memory"):
        taken: dict = {}
        for cell in BY_NAME[name].cells("small"):
            steps = tuple(stage["train"]["steps"] for stage in cell.settings["stages"])
            taken.setdefault((cell.labels["task"], cell.labels["segments"]), set()).add(steps)
        assert all(len(found) == 1 for found in taken.values()), taken


def test_the_most_important_cells_come_first():
    for name, count in {"rmt-copy": 9, "rmt-reverse": 4}.items():
        first = [cell.labels for cell in BY_NAME[name].cells("small")[:2]]
        assert [(each["model"], each["segments"], each["seed"]) for each in first] == [(RMT, count, 1), (XL, count, 1)]


def long_copies(labels) -> float:
    sizes = {40: 1.0, 120: 1.0, 240: 0.9, 360: 0.6}
    return 0.2 if labels["model"] == XL else 1.0 if labels["panel"] == "segments" else sizes[labels["size"]]


def test_long_copies_hold_fail_and_stay_open():
    experiment = BY_NAME["rmt-long-copy"]
    found = experiment.verdicts(made_up(experiment, "paper", accuracy(long_copies)))
    assert all(each.holds for each in found), found
    never = made_up(experiment, "paper", accuracy(lambda labels: 0.125))
    assert not any(each.holds for each in experiment.verdicts(never))
    one_seed = experiment.verdicts(made_up(experiment, "small", accuracy(lambda labels: float(labels["model"] == RMT))))
    assert [each.holds for each in one_seed] == [True] * 3 + [None] * 4
    assert all("the spread over seeds is unknown; preliminary, n = 1" in each.ours for each in one_seed[3:])


def test_published_values_stand_beside_sequences_in_proportion():
    experiment = BY_NAME["rmt-long-copy"]
    by_segments, by_size = experiment.tables(made_up(experiment, "small", accuracy(lambda labels: 1.0)))
    assert {row[1:4]: row[-1] for row in map(tuple, by_segments.rows) if row[0] == XL}[48, 9, 16] == "0.136"
    assert {row[1]: row[-1] for row in by_size.rows if row[0] == RMT}[72] == "0.579 (1 run)"


def test_equations_hold_and_fail():
    experiment = BY_NAME["rmt-quadratic"]
    good = accuracy(lambda labels: {"Baseline": 0.99, XL: 0.93}.get(labels["model"], 0.995))
    assert all(each.holds for each in experiment.verdicts(made_up(experiment, "paper", good)))
    bad = accuracy(lambda labels: {"Baseline": 0.9, XL: 0.8}.get(labels["model"], 0.5))
    assert [each.holds for each in experiment.verdicts(made_up(experiment, "paper", bad))] == [False] * 3
    solved, more, whole = experiment.verdicts(made_up(experiment, "small", good))
    assert solved.holds is True and more.holds is None and whole.holds is None
    assert any("5,000 equations; the paper budget on 20,000" in note for note in experiment.notes)


def language_values(bpc):
    def values(labels):
        score = {"loss": bpc(labels) * math.log(2)}
        vectors = labels["memory"] * (6 if labels["model"] == XL else 1)
        sizes = {"state_vectors": vectors, "state_bytes": 1024 * vectors, "reading_bytes": 10**8 + 10**6 * vectors}
        return {"outcome": "finished", "scores": {"test": score}, "peak_bytes": 10**9, **sizes}

    return values


def as_published(labels) -> float:
    """Bits per character with the order of Table 3."""
    if labels["model"] == RMT:
        return 1.30 - 0.06 * min(labels["bptt"], 1) - 0.01 * (labels["bptt"] > 1) - 0.0001 * labels["memory"]
    without = {"Baseline": 1.402, "MT": 1.40}
    return without[labels["model"]] if labels["model"] in without else 1.29 - 0.0015 * labels["memory"]


def test_two_models_that_guess_are_not_as_good_as_each_other():
    experiment = BY_NAME["rmt-retrieval"]
    guessing = verdict(experiment, made_up(experiment, "paper", by_model(0.1, 0.1)), "as good as RMT")
    assert guessing.holds is None and "no clear gain of RMT in 5 segments over Baseline" in guessing.ours
    assert verdict(experiment, made_up(experiment, "paper", by_model(0.95, 0.97)), "as good as RMT").holds is True
    assert verdict(experiment, made_up(experiment, "paper", by_model(0.95, 0.5)), "as good as RMT").holds is False


def test_published_numbers_of_models_that_only_read_memory_are_their_own():
    experiment = BY_NAME["rmt-retrieval"]
    empty = Results(budget="small", cells=[])
    assert verdict(experiment, empty, "about half").paper == "Baseline 0.496, MT 0.191"
    assert "MT 0.139, 0.109" in verdict(experiment, empty, "is guessed").paper
    assert "MT 0.102, not reported, not reported" in verdict(BY_NAME["rmt-reverse"], empty, "is guessed").paper


def test_a_number_of_the_result_files_is_not_the_papers():
    experiment = BY_NAME["rmt-language-model"]
    rows = experiment.tables(made_up(experiment, "paper", language_values(as_published)))[1].rows
    assert [row[-1] for row in rows if row[0] == "Baseline"] == ["1.402 (result files)"]


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("budget", PAPER_BUDGETS)
@pytest.mark.parametrize("values", [{}, {"curve": None, "maps": {"write": {}, "cache": {}}}, {"curve": [[1], None]}])
def test_results_without_values_leave_every_verdict_open(name, budget, values):
    experiment = BY_NAME[name]
    results = made_up(experiment, budget, lambda labels: values)
    assert all(each.holds is None for each in experiment.verdicts(results))
    assert experiment.figures(results) == []
    assert all(table.headers for table in experiment.tables(results))


@pytest.mark.parametrize("curve", [None, [[1], None], [[100, None]]])
def test_a_learning_curve_without_points_is_left_out(curve):
    experiment = BY_NAME["rmt-copy"]
    results = made_up(experiment, "small", lambda labels: by_model(1.0, 0.3)(labels) | {"curve": curve})
    assert "copy-learning" not in {figure.slug for figure in experiment.figures(results)}


def test_reverse_in_four_segments_is_not_run_at_self_test():
    experiment = BY_NAME["rmt-reverse"]
    results = made_up(experiment, "self-test", by_model(1.0, 0.3))
    absent = "this budget does not train: RMT on reverse in 4 segments"
    assert absent in verdict(experiment, results, "RMT solves reverse in 4").ours
    assert "says nothing about the claim" in verdict(experiment, results, "RMT solves reverse in 2").ours
    partly = made_up(experiment, "self-test", by_model(1.0, 0.3), keep=lambda cell: cell.labels["model"] != RMT)
    assert "not measured yet: RMT" in verdict(experiment, partly, "RMT solves reverse in 2").ours


def test_half_memory_says_which_memory_it_is_about():
    experiment = BY_NAME["rmt-half-memory"]
    claims = [each.claim for each in experiment.verdicts(Results(budget="small", cells=[]))]
    assert sum("with a memory of half a segment" in claim for claim in claims) == 6
    assert not set(claims) & {each.claim for each in BY_NAME["rmt-copy"].verdicts(Results(budget="small", cells=[]))}


def test_long_sequences_are_reversed_at_the_paper_budget_only():
    experiment = BY_NAME["rmt-half-memory"]
    claim = "reverse-120 in 4 segments"
    assert verdict(experiment, made_up(experiment, "paper", by_model(0.997, 0.614)), claim).holds is True
    assert verdict(experiment, made_up(experiment, "paper", by_model(0.997, 0.95)), claim).holds is False
    small = verdict(experiment, made_up(experiment, "small", by_model(0.997, 0.614)), claim)
    assert small.holds is None and small.ours.startswith("this budget does not train")


def test_figures_begin_at_one_segment():
    experiment = BY_NAME["rmt-reverse"]
    figures = {each.slug: each for each in experiment.figures(made_up(experiment, "small", by_model(1.0, 0.5)))}
    assert [tick for tick in re.findall(r">(\d+)</text>", figures["reverse-by-segments"].svg) if tick == "0"] == []


def test_quality_is_equal_in_both_directions():
    experiment = BY_NAME["rmt-state-size"]
    worse = language_values(lambda labels: 2.5 if labels["model"] == RMT else as_published(labels))
    vectors, *others = experiment.verdicts(made_up(experiment, "small", worse))
    assert vectors.holds is True and [each.holds for each in others] == [None, None]
    assert all("no pair" in each.ours and "the best RMT has 2.500 bpc" in each.ours for each in others)
    alike = made_up(experiment, "small", language_values(lambda labels: 2.0))
    assert all("gain too little" in each.ours for each in experiment.verdicts(alike)[1:])


def test_one_layer_says_nothing_about_states():
    experiment = BY_NAME["rmt-state-size"]
    assert (
        verdict(experiment, made_up(experiment, "self-test", language_values(lambda _: 1.0)), "m vectors").holds is None
    )


@pytest.mark.parametrize(
    ("bad", "holds"),
    [
        ({(10, 2)}, True),
        ({(20, 1)}, True),
        ({(5, 2), (20, 1)}, True),
        ({(5, 0)}, False),
        ({(10, 2), (1, 1)}, False),
        (set(), None),
    ],
)
def test_trouble_must_come_with_depth_and_memory(bad, holds):
    experiment = BY_NAME["rmt-language-model"]

    def values(labels):
        if labels["model"] == RMT and (labels["memory"], labels["bptt"]) in bad:
            return {"outcome": "diverged", "failed_at": 70}
        return language_values(as_published)(labels)

    assert experiment.verdicts(made_up(experiment, "small", values))[-1].holds is holds


def test_trouble_is_not_denied_before_a_run_is_measured():
    trouble = BY_NAME["rmt-language-model"].verdicts(Results(budget="small", cells=[]))[-1]
    assert trouble.holds is None and trouble.ours == "no RMT run is measured yet"


def test_language_models_in_the_published_order():
    experiment = BY_NAME["rmt-language-model"]
    results = made_up(experiment, "small", language_values(as_published))
    *found, trouble = experiment.verdicts(results)
    assert all(each.holds for each in found), found
    assert trouble.holds is None and "none diverged" in trouble.ours
    states = BY_NAME["rmt-state-size"]
    held = states.verdicts(made_up(states, "small", language_values(as_published)))
    assert all(each.holds for each in held), held


def test_visible_context_helps_and_memory_size_matters_little():
    experiment = BY_NAME["rmt-context"]
    at_paper = experiment.verdicts(made_up(experiment, "paper", language_values(as_published)))
    assert all(each.holds for each in at_paper), at_paper
    flat = experiment.verdicts(made_up(experiment, "paper", language_values(lambda labels: 1.3)))
    assert not any(each.holds for each in flat)
    one_seed = experiment.verdicts(made_up(experiment, "small", language_values(as_published)))
    assert all(each.holds is None and "preliminary, n = 1" in each.ours for each in one_seed)


def test_language_models_that_gain_nothing_from_memory():
    experiment = BY_NAME["rmt-language-model"]
    flat = language_values(lambda labels: 1.5 + (labels["model"] == RMT))
    found = experiment.verdicts(made_up(experiment, "small", flat))
    assert [each.holds for each in found] == [False, False, None, None, None]


def test_a_diverged_run_is_a_result_and_in_no_mean():
    experiment = BY_NAME["rmt-language-model"]

    def values(labels):
        if labels["model"] == RMT and labels["bptt"] == 2:
            return {"outcome": "diverged", "message": "loss is nan", "failed_at": 70}
        return language_values(as_published)(labels)

    results = made_up(experiment, "small", values)
    trouble = experiment.verdicts(results)[-1]
    assert trouble.holds is True and "2 diverged" in trouble.ours
    rows = [row for row in experiment.tables(results)[0].rows if row[0] == RMT and row[3] == 2]
    assert rows and all(row[5] == "" and row[6] == "1 diverged at step 70" for row in rows)


class Noted(Unwatched):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Diverged("loss nan at step 3"), "diverged"), (torch.OutOfMemoryError("too big"), "out of memory")],
)
def test_a_run_that_fails_is_written_down(error, outcome, tmp_path, monkeypatch):
    def fail(settings, place):
        raise error

    monkeypatch.setattr(jobs, "train_and_score", fail)
    cell = BY_NAME["rmt-language-model"].cells("self-test")[0]
    watched = Noted()
    values = jobs.train_or_fail(cell.settings, Place(tmp_path, tmp_path, torch.device("cpu"), watched))
    assert values["outcome"] == outcome and values["failed_at"] == 0 and str(error) in values["message"]
    assert any(outcome in line for line in watched.notes)


def test_states_are_counted_in_vectors():
    sizes = {}
    for cell in BY_NAME["rmt-language-model"].cells("small"):
        recipe = from_json(Recipe, cell.settings["recipe"])
        if cell.labels["memory"] == 10 and cell.labels["model"] in (XL, RMT):
            sizes[cell.labels["model"]] = jobs.state_sizes(Model(recipe.model))["state_vectors"]
    assert sizes == {XL: 60, RMT: 10}


def test_attention_that_is_clear_holds_and_attention_that_is_spread_fails():
    experiment = BY_NAME["rmt-attention"]

    def values(focus, straight, backwards):
        def of(labels):
            order = backwards if labels["task"] == "reverse" else straight
            found = {"segment": 1, "layer": 1, "head": 2, "focus": focus, "mass": 0.9, "order": order}
            found |= {"memory": 1, "tokens": 1, "cached": 0, "map": [[0.5] * 3] * 3}
            rmt = labels["model"] == RMT
            return {
                "character_accuracy": 1.0 if rmt else 0.8,
                "maps": {name: found for name in (("write", "read", "rewrite") if rmt else ("cache",))},
            }

        return of

    clear = made_up(experiment, "small", values(0.8, 0.95, -0.95))
    assert all(each.holds for each in experiment.verdicts(clear))
    assert not any(
        each.holds for each in experiment.verdicts(made_up(experiment, "small", values(0.05, 0.0, 0.0)))[:-1]
    )
    assert (
        "reverse in 2 segments" in experiment.figures(made_up(experiment, "self-test", values(0.8, 0.9, 0.9)))[0].title
    )
    wrong_way = made_up(experiment, "small", values(0.8, -0.95, 0.95))
    assert [each.holds for each in experiment.verdicts(wrong_way)][:2] == [False, False]


@pytest.mark.parametrize(("rmt", "holds"), [(0.99, True), (0.98, False)])
def test_packing_without_loss_is_solving(rmt, holds):
    experiment = BY_NAME["rmt-attention"]
    found = verdict(experiment, made_up(experiment, "small", by_model(rmt, 0.5)), "packs 12 tokens")
    assert found.holds is holds and "preliminary, n = 1" in found.ours


def test_the_order_of_a_map_is_straight_backwards_or_none():
    straight = np.eye(6)
    assert maps.order(straight) == pytest.approx(1.0)
    assert maps.order(straight[::-1]) == pytest.approx(-1.0)
    assert maps.order(np.ones((6, 6))) == 0.0


def test_blocks_of_a_map_lie_where_the_rows_are():
    blocks = {block.name: block for block in maps.Layout(memory=2, tokens=3, cached=4).blocks()}
    grid = np.add.outer(10 * np.arange(7), np.arange(11))
    assert grid[blocks["write"].rows, blocks["write"].keys].tolist() == [[56, 57, 58], [66, 67, 68]]
    assert grid[blocks["read"].rows, blocks["read"].keys].tolist() == [[24, 25], [34, 35], [44, 45]]
    assert grid[blocks["rewrite"].rows, blocks["rewrite"].keys].tolist() == [[54, 55], [64, 65]]
    assert grid[blocks["cache"].rows, blocks["cache"].keys].shape == (3, 4)


def test_experiments_on_the_same_runs_share_them(tmp_path):
    language, context = BY_NAME["rmt-language-model"], BY_NAME["rmt-context"]
    names = {cell.name for cell in context.cells("self-test")}
    first = run_here(language, "self-test", grid_folder(tmp_path, language.name, "self-test"), device="cpu")
    second = run_here(context, "self-test", grid_folder(tmp_path, context.name, "self-test"), device="cpu")
    for result in second.found.results.cells:
        twin = first.found.results.one(result.cell.name)
        assert twin is not None and result.values == twin.values and result.seconds == twin.seconds
    assert {result.cell.name for result in second.found.results.cells} == names
    assert all(path.is_symlink() for path in (grid_folder(tmp_path, context.name, "self-test") / "cells").iterdir())
