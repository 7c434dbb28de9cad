"""The gpu budget on enwik8: its grids, its verdicts on made-up results, and what its rows have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mnemo.config import from_json
from mnemo.files.json_file import write_json
from mnemo.papers import CellResult, Experiment, Results, every_experiment, find_experiment
from mnemo.papers.gpu import EXPERIMENTS, equal_time
from mnemo.papers.gpu.equal_time import SPEED
from mnemo.papers.gpu.lamemo import MULTIPLES, SAMPLES
from mnemo.papers.gpu.memory import TESTED
from mnemo.papers.gpu.text import ADAM
from mnemo.papers.jobs import Place, Stopped
from mnemo.papers.pool import run_together
from mnemo.papers.runner import run_here
from mnemo.papers.store import RESULT, grid_folder, load_grid, save_grid
from mnemo.recipes.recipe import Recipe
from mnemo.training import Monitor, Status, Unwatched

ROOT = Path(__file__).parents[2]
NAMES = ["gpu-xl", "gpu-long-range", "gpu-rmt", "gpu-lamemo"]
ON_TEXT = [each for each in EXPERIMENTS if each.name in NAMES]
LOSSES = {
    "gpu-xl": {"memory": 0.8, "none": 0.9, "none-as-long": 0.88, "vanilla": 0.92},
    "gpu-long-range": {"all-12": 0.8, "2-interleaved": 0.81, "2-last": 0.81, "2-first": 0.88, "none": 0.9},
    "gpu-rmt": {"none": 0.9, "slots": 0.8, "rmt-10": 0.8, "rmt-5": 0.81, "mt-10": 0.89},
    "gpu-lamemo": {"none": 0.9, "xl": 0.8, "lamemo": 0.78, "detached": 0.77},
}
each_experiment = pytest.mark.parametrize("experiment", ON_TEXT, ids=lambda each: each.name)


@each_experiment
def test_notes_name_the_optimizer_of_the_models(experiment: Experiment) -> None:
    recipes = [from_json(Recipe, each.settings["recipe"]) for each in experiment.cells("gpu") if each.job == "train"]
    kinds = {recipe.train.optimizer.kind for recipe in recipes}
    assert kinds == ({"adam"} if ADAM in experiment.notes else {"muon"})


def made_up(experiment: Experiment, value: Callable[[str], float]) -> Results:
    """Results whose value depends on the model, and a little on the seed."""
    cells = []
    for cell in experiment.cells("gpu"):
        if cell.name == SPEED:
            continue
        name, seed = cell.name.removesuffix(SAMPLES).rsplit("-seed", 1)
        if cell.name.endswith(SAMPLES):
            cells.append(CellResult(cell=cell, values=written(value(name)), seconds=1.0, hardware="", versions={}))
            continue
        loss = {"loss": value(name) - 0.001 * int(seed)}
        further = [*(f"m{number}" for number in MULTIPLES), *(f"memory{memory}" for memory in TESTED)]
        values = {"scores": dict.fromkeys(["test", *further], loss), "curve": [[1, loss["loss"]]], "steps": 8400}
        cells.append(CellResult(cell=cell, values=values, seconds=1.0, hardware="", versions={}))
    return Results(budget="gpu", cells=cells)


def written(share: float) -> dict[str, Any]:
    """Values of a cell that writes samples."""
    shares = [0.1 * share, 0.1 * share]
    texts = {"begins": [0, 9], "texts": ["one", "two"]}
    return texts | {"repetition": shares, "distinct": shares}


def recipes(experiment: Experiment) -> dict[str, Recipe]:
    """The recipe of every row, with its first seed."""
    cells = [cell for cell in experiment.cells("gpu") if cell.labels.get("seed") == 1 and "recipe" in cell.settings]
    return {cell.name.removesuffix("-seed1"): from_json(Recipe, cell.settings["recipe"]) for cell in cells}


def test_there_is_one_experiment_for_each_paper() -> None:
    assert [each.name for each in ON_TEXT] == NAMES
    papers = {each.paper for each in ON_TEXT}
    assert len(papers) == 4 and papers <= {each.paper for name, each in every_experiment().items() if name not in NAMES}


@each_experiment
def test_every_model_has_three_seeds(experiment: Experiment) -> None:
    names = [cell.name for cell in experiment.cells("gpu") if "recipe" in cell.settings]
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
        return replace(recipe, model=model, train=replace(recipe.train, bptt=first.train.bptt), test=first.test)

    assert all(without_memory(each) == first for each in found.values())


def test_the_published_choices() -> None:
    lamemo = recipes(find_experiment("gpu-lamemo"))["lamemo"].model
    assert lamemo.dropout.positions == 0.1 and lamemo.memory.long.first_bias == "xavier"  # type: ignore[union-attr]
    bptt = {name: each.train.bptt for name, each in recipes(find_experiment("gpu-rmt")).items()}
    assert bptt == {"none": 0, "slots": 0, "rmt-10": 1, "rmt-5": 1, "mt-10": 0}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("gpu-xl", {}, [True, True, True]),
        ("gpu-xl", {"none-as-long": 0.79}, [True, True, False]),
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


def test_the_table_shows_the_steps_that_the_same_time_allows() -> None:
    (table,) = find_experiment("gpu-xl").tables(made_up(find_experiment("gpu-xl"), LOSSES["gpu-xl"].__getitem__))
    assert {row[table.headers.index("steps")] for row in table.rows} == {"8,400"}


def test_the_page_shows_the_speeds_that_steps_for_the_same_time_follow_from() -> None:
    found = load_grid(ROOT / "results" / "gpu-xl" / "gpu", find_experiment("gpu-xl"), "gpu").results
    scores, speeds = find_experiment("gpu-xl").tables(found)
    with_memory, without = speeds.rows
    assert with_memory == ("Transformer-XL, memory 512", "800,882", "6,000")
    assert without == ("no memory, relative positions", "1,086,840", "8,142")
    assert "1.357 x 6,000 steps" in speeds.caption
    (as_long,) = [row for row in scores.rows if row[0] == "no memory, steps for the same time"]
    assert as_long[scores.headers.index("steps")] == without[2]


@pytest.mark.parametrize(("at_once", "warns"), [(1, False), (3, True), (None, True)])
def test_seconds_are_comparable_only_if_cells_were_alone(at_once: int | None, warns: bool) -> None:
    experiment = find_experiment("gpu-xl")
    made = made_up(experiment, LOSSES["gpu-xl"].__getitem__)
    (table,) = experiment.tables(replace(made, cells=[replace(each, at_once=at_once) for each in made.cells]))
    assert ("Seconds of different rows are not comparable" in table.caption) == warns


@pytest.mark.thorough
def test_measured_speeds_go_along_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file of all results, to processes that train."""
    whole = find_experiment("gpu-xl")
    cells = [cell for cell in whole.cells("self-test") if cell.name == SPEED or cell.after]
    part = replace(whole, cells=lambda budget: cells)
    first = run_here(replace(whole, cells=lambda budget: cells[:1]), "self-test", tmp_path / "here", device="cpu")
    there = grid_folder(tmp_path / "there", whole.name, "self-test")
    there.mkdir(parents=True)
    save_grid(there, part, first.found.results)
    monkeypatch.setattr("mnemo.papers.pool.NEWS_SECONDS", 0.0)
    lines: list[str] = []
    (ran,) = run_together([part], "self-test", tmp_path / "there", jobs=2, device="cpu", print_line=lines.append)
    assert not ran.failures and [each.cell for each in ran.found.results.cells] == cells
    assert not any(f"{SPEED} " in line for line in lines)
    assert "gpu-xl none-as-long-seed1: starts" in lines


def test_a_faster_model_makes_more_steps_in_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6,000 steps: 1.4 times as many, with their own warm-up and intervals."""
    experiment = find_experiment("gpu-xl")
    cell = next(cell for cell in experiment.cells("gpu") if cell.name == "none-as-long-seed2")
    assert cell.after == (SPEED,)
    speeds = {name: {"tokens_per_second": speed} for name, speed in (("memory", 500.0), ("none", 700.0))}
    (tmp_path / SPEED).mkdir()
    write_json(tmp_path / SPEED / RESULT, {"values": {"paces": speeds}})
    trained: list[dict[str, Any]] = []
    monkeypatch.setattr(equal_time, "train_and_score", lambda settings, place: trained.append(settings) or {})
    equal_time.train_as_long(cell.settings, Place(tmp_path / cell.name, tmp_path, torch.device("cpu"), Unwatched()))
    recipe = from_json(Recipe, trained[0]["recipe"])
    assert recipe.train.steps == recipe.train.checkpoint_every == 8400
    assert recipe.train.schedule.warmup == 840 and recipe.train.eval_every == 1680
    assert recipe.train.seed == 2 and list(trained[0]["scores"]) == ["test"]


class Stops(Unwatched):
    """Ends a training at its first report."""

    def trained(self, status: Status) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_an_interrupted_model_keeps_its_steps_when_speeds_are_measured_again(tmp_path: Path) -> None:
    cell = next(each for each in find_experiment("gpu-xl").cells("self-test") if each.name == "none-as-long-seed1")

    def train(speed: float, monitor: Monitor) -> dict[str, Any]:
        speeds = {"memory": {"tokens_per_second": 1000.0}, "none": {"tokens_per_second": speed}}
        write_json(tmp_path / SPEED / RESULT, {"values": {"paces": speeds}})
        place = Place(tmp_path / cell.name, tmp_path, torch.device("cpu"), monitor)
        return equal_time.train_as_long(cell.settings, place)

    for name in (SPEED, cell.name):
        (tmp_path / name).mkdir()
    with pytest.raises(Stopped):
        train(2000.0, Stops())
    assert train(4000.0, Unwatched())["steps"] == 4  # the recipe has 2 steps for a model that is as fast
