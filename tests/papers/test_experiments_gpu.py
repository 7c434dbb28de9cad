"""The gpu budget on enwik8: its grids, its verdicts on made-up results, and what its rows have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mnemo.config import from_json
from mnemo.papers import CellResult, Experiment, Results, every_experiment, find_experiment
from mnemo.papers.gpu import EXPERIMENTS
from mnemo.papers.gpu.lamemo import MULTIPLES, SAMPLES
from mnemo.papers.gpu.memory import LONGER, STEPS, TESTED
from mnemo.papers.runner import run_here
from mnemo.recipes.recipe import Recipe

NAMES = ["gpu-xl", "gpu-long-range", "gpu-rmt", "gpu-lamemo"]
ON_TEXT = [each for each in EXPERIMENTS if each.name in NAMES]
LOSSES = {
    "gpu-xl": {"memory": 0.8, "none": 0.9, "none-longer": 0.88, "vanilla": 0.92},
    "gpu-long-range": {"all-12": 0.8, "2-interleaved": 0.81, "2-last": 0.81, "2-first": 0.88, "none": 0.9},
    "gpu-rmt": {"none": 0.9, "slots": 0.8, "rmt-10": 0.8, "rmt-5": 0.81, "mt-10": 0.89},
    "gpu-lamemo": {"none": 0.9, "xl": 0.8, "lamemo": 0.78, "detached": 0.77},
}
each_experiment = pytest.mark.parametrize("experiment", ON_TEXT, ids=lambda each: each.name)


def made_up(experiment: Experiment, value: Callable[[str], float]) -> Results:
    """Results whose value depends on the model, and a little on the seed."""
    cells = []
    for cell in experiment.cells("gpu"):
        name, seed = cell.name.removesuffix(SAMPLES).rsplit("-seed", 1)
        if cell.name.endswith(SAMPLES):
            cells.append(CellResult(cell=cell, values=written(value(name)), seconds=1.0, hardware="", versions={}))
            continue
        loss = {"loss": value(name) - 0.001 * int(seed)}
        further = [*(f"m{number}" for number in MULTIPLES), *(f"memory{memory}" for memory in TESTED)]
        values = {"scores": dict.fromkeys(["test", *further], loss), "curve": [[1, loss["loss"]]]}
        cells.append(CellResult(cell=cell, values=values, seconds=1.0, hardware="", versions={}))
    return Results(budget="gpu", cells=cells)


def written(share: float) -> dict[str, Any]:
    """Values of a cell that writes samples."""
    shares = [0.1 * share, 0.1 * share]
    texts = {"begins": [0, 9], "texts": ["one", "two"]}
    return texts | {"repetition": shares, "distinct": shares}


def recipes(experiment: Experiment) -> dict[str, Recipe]:
    """The recipe of every row, with its first seed."""
    cells = [cell for cell in experiment.cells("gpu") if cell.labels["seed"] == 1 and not cell.after]
    return {cell.name.removesuffix("-seed1"): from_json(Recipe, cell.settings["recipe"]) for cell in cells}


def test_there_is_one_experiment_for_each_paper() -> None:
    assert [each.name for each in ON_TEXT] == NAMES
    papers = {each.paper for each in ON_TEXT}
    assert len(papers) == 4 and papers <= {each.paper for name, each in every_experiment().items() if name not in NAMES}


@each_experiment
def test_every_model_has_three_seeds(experiment: Experiment) -> None:
    names = [cell.name for cell in experiment.cells("gpu") if not cell.after]
    assert sorted(names) == sorted(f"{model}-seed{seed}" for model in recipes(experiment) for seed in (1, 2, 3))


@each_experiment
def test_models_of_a_comparison_differ_in_their_memory_alone(experiment: Experiment) -> None:
    found = recipes(experiment)
    first = next(iter(found.values()))
    assert first.data.corpus == "enwik8" and first.model.num_layers == 12

    def without_memory(recipe: Recipe) -> Recipe:
        model = replace(
            recipe.model, memory=first.model.memory, tokens=first.model.tokens, positions=first.model.positions
        )
        schedule = replace(recipe.train.schedule, warmup=first.train.schedule.warmup)
        intervals = {name: getattr(first.train, name) for name in ("steps", "bptt", "eval_every", "checkpoint_every")}
        return replace(
            recipe, model=model, train=replace(recipe.train, schedule=schedule, **intervals), test=first.test
        )

    assert all(without_memory(each) == first for each in found.values())
    longer = {name for name, each in found.items() if each.train.steps != first.train.steps}
    assert longer == ({"none-longer"} if experiment.name == "gpu-xl" else set())


def test_the_longer_training_and_the_published_choices() -> None:
    assert recipes(find_experiment("gpu-xl"))["none-longer"].train.steps == round(LONGER * STEPS)
    lamemo = recipes(find_experiment("gpu-lamemo"))["lamemo"].model
    assert lamemo.dropout.positions == 0.1 and lamemo.memory.long.first_bias == "xavier"  # type: ignore[union-attr]
    bptt = {name: each.train.bptt for name, each in recipes(find_experiment("gpu-rmt")).items()}
    assert bptt == {"none": 0, "slots": 0, "rmt-10": 1, "rmt-5": 1, "mt-10": 0}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("gpu-xl", {}, [True, True, True]),
        ("gpu-xl", {"none-longer": 0.79}, [True, True, False]),
        ("gpu-long-range", {}, [True, True, True, True]),
        ("gpu-long-range", {"2-interleaved": 0.88}, [True, False, True, False]),
        ("gpu-long-range", {"none": 0.8}, [False, None, None, True]),
        ("gpu-rmt", {}, [True, True, True]),
        ("gpu-rmt", {"rmt-5": 0.89, "mt-10": 0.8}, [True, False, False]),
        ("gpu-lamemo", {}, [True, True, True, True, True]),
        ("gpu-lamemo", {"lamemo": 3.5}, [False, False, False, False, True]),
    ],
)
def test_verdicts_follow_from_the_results(name: str, values: dict[str, float], expected: list[bool | None]) -> None:
    experiment = find_experiment(name)
    results = made_up(experiment, (LOSSES[name] | values).__getitem__)
    assert [each.holds for each in experiment.verdicts(results)] == expected


@each_experiment
def test_pages_can_be_made_from_nothing_and_from_everything(experiment: Experiment) -> None:
    nothing = Results(budget="gpu", cells=[])
    assert all(each.holds is None for each in experiment.verdicts(nothing))
    assert experiment.figures(nothing) == [] and experiment.tables(nothing) == []
    whole = made_up(experiment, LOSSES[experiment.name].__getitem__)
    assert len(experiment.tables(whole)[0].rows) == len(recipes(experiment))
    assert len(experiment.figures(whole)) >= 2
    assert len(experiment.samples(whole)) == (6 if experiment.name == "gpu-lamemo" else 0)


@pytest.mark.parametrize(
    "name", [name if name == "gpu-lamemo" else pytest.param(name, marks=pytest.mark.thorough) for name in NAMES]
)
def test_the_self_test_passes(name: str, tmp_path: Path) -> None:
    experiment = find_experiment(name)
    ran = run_here(experiment, "self-test", tmp_path, device="cpu")
    assert not ran.failures
    assert [each.cell for each in ran.found.results.cells] == experiment.cells("self-test")
