"""The job that trains on a task and lets the model answer, and recipes that learn quickly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnemo.config import to_json
from mnemo.data.tasks import Copy, Retrieval
from mnemo.errors import MnemoError
from mnemo.experiments.jobs import Place, find_job
from mnemo.experiments.quick_tasks import TaskModel, quick_task_recipe
from mnemo.experiments.task_job import task_job
from mnemo.recipe import Recipe
from mnemo.train import Unwatched

TASK = Copy(symbols=4, train=32, valid=8, test=6)


def tiny(model: TaskModel = "rmt", segments: int = 3) -> Recipe:
    recipe = quick_task_recipe(TASK, model, segments, 1, steps=3, batch=4, num_layers=1, dim=8, precision="fp32")
    return replace(recipe, train=replace(recipe.train, log_every=1, eval_every=2))


def test_a_job_trains_and_answers_the_whole_test_set(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, torch.device("cpu"), Unwatched())
    settings = {"recipe": to_json(tiny()), "published": True}
    assert find_job("task") is task_job
    values = task_job(settings, place)
    assert values["samples"] == values["published_samples"] == 6 and values["segments"] == 3
    assert 0 <= values["character_accuracy"] <= 1 and values["steps"] == 3
    assert [step for step, _ in values["curve"]] == [2, 3] and len(values["train_curve"]) == 3
    assert values["tokens"] == 3 * 4 * 12 and len(values["by_position"]) == 8
    again = task_job(settings, place)
    timed = ("answer_seconds", "published_answer_seconds")
    assert {name: again[name] for name in again if name not in timed} == {
        name: values[name] for name in values if name not in timed
    }


def test_a_job_needs_a_task(tmp_path: Path) -> None:
    recipe = tiny()
    settings = {"recipe": to_json(replace(recipe, data=replace(recipe.data, task=None)))}
    place = Place(tmp_path, tmp_path, torch.device("cpu"), Unwatched())
    with pytest.raises(MnemoError, match="needs a recipe with a task"):
        task_job(settings, place)


@pytest.mark.parametrize("model", ["baseline", "mt", "xl", "rmt"])
def test_models_of_a_comparison_differ_in_their_memory_only(model: TaskModel) -> None:
    recipe = quick_task_recipe(Copy(), model, 9, 1)
    assert (recipe.train.segment, recipe.train.bptt, recipe.train.seed) == (8, 8, 1)
    assert recipe.model.memory.lengths(4)[0] == (8 if model == "xl" else 0)
    tokens = recipe.model.tokens
    assert (tokens and (tokens.num, tokens.write)) == {"rmt": (8, True), "mt": (8, False)}.get(model)
    other = quick_task_recipe(Copy(), "baseline", 9, 1)
    assert replace(recipe, model=other.model) == other
    assert quick_task_recipe(Copy(), "xl", 3, 1, memory=12).model.memory.lengths(4)[0] == 12


def test_samples_are_cut_into_real_segments() -> None:
    assert [quick_task_recipe(Retrieval(), "rmt", count, 1).train.segment for count in (1, 2, 3, 4, 5)] == [
        10,
        5,
        4,
        3,
        2,
    ]
    for count in (0, 7, 11):
        with pytest.raises(MnemoError, match=f"cannot be cut into {count}"):
            quick_task_recipe(Retrieval(), "rmt", count, 1)
