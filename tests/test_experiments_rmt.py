"""Experiments of the Recurrent Memory Transformer: every smoke run passes, verdicts follow from results alone."""

from __future__ import annotations

import json

import pytest
from mnemo.experiments.runner import run_here

from mnemo.config import from_json
from mnemo.experiments import BUDGETS, CellResult, Experiment, Results
from mnemo.experiments.rmt import EXPERIMENTS
from mnemo.recipe import Recipe

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
@pytest.mark.parametrize("budget", BUDGETS)
def test_cells_are_plain_and_their_recipes_can_be_read(name, budget):
    cells = BY_NAME[name].cells(budget)
    assert cells and len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        assert json.loads(json.dumps(cell.settings)) == cell.settings
        assert cell.name == cell.name.lower() and "/" not in cell.name and " " not in cell.name
        for stage in cell.settings.get("stages", [cell.settings.get("recipe")]):
            assert isinstance(from_json(Recipe, stage), Recipe)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("budget", BUDGETS)
def test_nothing_measured_leaves_every_verdict_open(name, budget):
    experiment, empty = BY_NAME[name], Results(budget=budget, cells=[])
    verdicts = experiment.verdicts(empty)
    assert verdicts and all(each.holds is None for each in verdicts)
    assert experiment.figures(empty) == []
    assert all(table.headers for table in experiment.tables(empty))


@pytest.mark.parametrize("name", BY_NAME)
def test_smoke_runs_pass_and_decide_nothing(name, tmp_path):
    experiment = BY_NAME[name]
    ran = run_here(experiment, "smoke", tmp_path, device="cpu")
    assert ran.failures == () and ran.found.problems == () and not ran.interrupted
    results = ran.found.results
    assert len(results.cells) == len(experiment.cells("smoke"))
    assert all(each.holds is None or "vectors" in each.claim for each in experiment.verdicts(results))
    figures, tables = experiment.figures(results), experiment.tables(results)
    assert figures and all(figure.svg.startswith("<svg") for figure in figures)
    assert any(table.rows for table in tables)
