"""The gpu budget on RMT's tasks: stages, the pilot and what follows from it, verdicts on made-up results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.monitors import Notes

from mnemo.config import from_json
from mnemo.data.tasks import Quadratic, Retrieval
from mnemo.files.json_file import write_json
from mnemo.model import Model
from mnemo.papers import Cell, CellResult, Experiment, Results
from mnemo.papers.gpu import quadratic, retrieval
from mnemo.papers.jobs import Place
from mnemo.papers.rmt import jobs
from mnemo.papers.rmt.published import BASELINE, RMT, XL
from mnemo.papers.runner import run_here
from mnemo.papers.store import RESULT
from mnemo.recipes.recipe import Recipe
from mnemo.training import Unwatched

EXPERIMENTS = [retrieval.EXPERIMENT, quadratic.EXPERIMENT]
each_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
SOLVED: dict[tuple[str, int], float] = {(BASELINE, 5): 0.1, (XL, 6): 0.93}
"""Accuracies by model and segments; all others are perfect."""


def made_up(experiment: Experiment, accuracy: dict[tuple[str, int], float]) -> Results:
    cells = []
    for cell in experiment.cells("gpu"):
        share = accuracy.get((cell.labels["model"], cell.labels["segments"]), 1.0) - 0.001 * cell.labels["seed"]
        values = {"character_accuracy": share, "answer_accuracy": share, "curve": [[1, 0.1]], "way": "at once"}
        cells.append(CellResult(cell=cell, values=values, seconds=1.0, hardware="", versions={}))
    return Results(budget="gpu", cells=cells)


def recipes(settings: dict[str, Any]) -> list[Recipe]:
    return [from_json(Recipe, stage) for stage in settings["stages"]]


def ways(cell: Cell) -> list[list[Recipe]]:
    """The stages of a cell of a row, in each way of learning."""
    if "stages" in cell.settings:
        return [recipes(cell.settings)]
    return [recipes(cell.settings[way]) for way in ("at once", "in stages")]


def rows(experiment: Experiment) -> list[Cell]:
    """The cells of all rows, without the pilot."""
    return [cell for cell in experiment.cells("gpu") if cell.job != "rmt-pilot"]


@each_experiment
def test_every_model_has_three_seeds_and_the_published_size_in_bf16(experiment: Experiment) -> None:
    names = {cell.name.rsplit("-", 1)[0] for cell in rows(experiment)}
    assert sorted(cell.name for cell in rows(experiment)) == sorted(
        f"{name}-seed{n}" for name in names for n in (1, 2, 3)
    )
    for cell in rows(experiment):
        for stages in ways(cell):
            last = stages[-1]
            assert last.model.num_layers == 6 and last.train.precision == "bf16"
            assert all(each.model == last.model and each.train.segment == last.train.segment for each in stages)


def test_published_numbers_of_weights() -> None:
    sizes = {
        experiment.name: {
            sum(each.numel() for each in Model(ways(cell)[0][-1].model).parameters())
            for cell in rows(experiment)
            if cell.labels["model"] == BASELINE
        }
        for experiment in EXPERIMENTS
    }
    assert sizes == {"gpu-retrieval": {349_541}, "gpu-quadratic": {1_877_272}}


def test_retrieval_in_one_segment_takes_the_stages_of_the_others() -> None:
    found = {}
    for cell in rows(retrieval.EXPERIMENT):
        (stages,) = ways(cell)
        tasks = [each.data.task for each in stages]
        assert all(isinstance(task, Retrieval) for task in tasks)
        found[cell.labels["model"], cell.labels["segments"]] = [
            (each.data.task.pairs, each.train.steps, each.train.bptt + 1)  # type: ignore[union-attr]
            for each in stages
        ]
    steps = {key: [stage[:2] for stage in stages] for key, stages in found.items()}
    assert set(steps) == {
        *((RMT, n) for n in (5, 3, 2, 1)),
        *((XL, n) for n in (5, 3, 2)),
        (BASELINE, 5),
        (BASELINE, 1),
    }
    assert all(each == [(2, 2000), (4, 6000)] for each in steps.values())
    assert [stage[2] for stage in found[RMT, 5]] == [3, 5] and [stage[2] for stage in found[RMT, 1]] == [1, 1]


def test_a_shorter_task_in_one_segment_can_be_learned(tmp_path: Path) -> None:
    row = replace(retrieval.SERIES, tiny=(4, 1)).row("self-test", RMT, 1)
    values = jobs.learn_in_stages(row.settings(1), Place(tmp_path, tmp_path, torch.device("cpu"), Unwatched()))
    assert values["stages"] == [1, 2] and values["samples"] == 16


def test_a_stage_that_ends_at_its_goal_says_so(tmp_path: Path) -> None:
    row = replace(retrieval.SERIES, tiny=(4, 1)).row("self-test", RMT, 1)
    settings = row.settings(1)
    settings["stages"][0]["train"] |= {"steps": 5, "eval_every": 2, "goal": 100.0}
    notes = Notes()
    values = jobs.learn_in_stages(settings, Place(tmp_path, tmp_path, torch.device("cpu"), notes))
    assert values["stages"] == [2, 2]
    (line,) = [line for line in notes.lines if "ended" in line]
    assert line.startswith("stage 1 of 2 ended after step 2 of 5: the validation loss of ")
    assert line.endswith(" nats has reached the goal of 100")


def test_equations_take_the_same_number_of_steps_in_both_ways() -> None:
    for cell in rows(quadratic.EXPERIMENT):
        at_once, growing = ways(cell)
        assert [sum(each.train.steps for each in stages) for stages in (at_once, growing)] == [quadratic.STEPS] * 2
        assert at_once[0].data == growing[-1].data and at_once[0].model == growing[0].model
        tasks = [each.data.task for each in growing]
        assert [task.largest_root for task in tasks if isinstance(task, Quadratic)] == [10, 30, 100]
        assert cell.after == ("pilot-seed1",)


def test_the_pilot_is_the_baseline_at_once() -> None:
    pilot, *others = quadratic.EXPERIMENT.cells("gpu")
    (twin,) = [cell for cell in others if cell.labels["model"] == BASELINE and cell.labels["seed"] == 1]
    assert pilot.name == "pilot-seed1" and [pilot.settings["recipe"]] == twin.settings["at once"]["stages"]


@pytest.mark.parametrize(("solved", "way"), [(0.5, "at once"), (0.499, "in stages")])
def test_the_pilot_decides(solved: float, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "learn_in_stages", lambda settings, place: {"learned": settings})
    cell = rows(quadratic.EXPERIMENT)[0]
    folder = tmp_path / cell.name
    (tmp_path / "pilot-seed1").mkdir()
    write_json(tmp_path / "pilot-seed1" / RESULT, {"values": {"answer_accuracy": solved}})
    values = jobs.learn_as_decided(cell.settings, Place(folder, tmp_path, torch.device("cpu"), Unwatched()))
    assert values == {"learned": cell.settings[way], "way": way}


@pytest.mark.parametrize(
    ("experiment", "accuracy", "expected"),
    [
        (retrieval.EXPERIMENT, {}, [True, True, True, True, True]),
        (retrieval.EXPERIMENT, {(RMT, 1): 0.48}, [False, True, True, True, True]),
        (retrieval.EXPERIMENT, {(XL, 5): 0.4, (RMT, 2): 0.98}, [True, False, True, False, True]),
        (retrieval.EXPERIMENT, {(RMT, 5): 0.1}, [True, True, True, None, False]),
        (quadratic.EXPERIMENT, {}, [True, True, True, True]),
        (quadratic.EXPERIMENT, {(RMT, 6): 0.9}, [True, False, False, False]),
        (quadratic.EXPERIMENT, {(BASELINE, 1): 0.2, (RMT, 6): 0.2, (XL, 6): 0.2}, [False, False, None, False]),
    ],
)
def test_verdicts_follow_from_the_results(
    experiment: Experiment, accuracy: dict[tuple[str, int], float], expected: list[bool | None]
) -> None:
    results = made_up(experiment, SOLVED | accuracy)
    assert [each.holds for each in experiment.verdicts(results)] == expected


@each_experiment
def test_pages_can_be_made_from_nothing_and_from_everything(experiment: Experiment) -> None:
    nothing = Results(budget="gpu", cells=[])
    assert all(each.holds is None for each in experiment.verdicts(nothing))
    assert experiment.figures(nothing) == [] and experiment.tables(nothing) == []
    whole = made_up(experiment, SOLVED)
    assert len(experiment.tables(whole)[0].rows) == len(rows(experiment)) // 3
    assert len(experiment.figures(whole)) == 2


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(e, id=e.name, marks=pytest.mark.thorough if e.name == "gpu-quadratic" else ()) for e in EXPERIMENTS],
)
def test_the_self_test_passes(experiment: Experiment, tmp_path: Path) -> None:
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    assert not ran.failures
    assert [each.cell for each in ran.found.results.cells] == experiment.cells("self-test")
    assert len(experiment.tables(ran.found.results)) == (2 if experiment.name == "gpu-quadratic" else 1)
