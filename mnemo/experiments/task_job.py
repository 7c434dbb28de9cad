"""The job `task`: train a model on an algorithmic task, then let it answer the whole test set.

    settings = {"recipe": to_json(recipe), "published": False}

`published` measures in the released code's way too; those accuracies have names of their own.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Protocol

import torch

from mnemo.answers import AnswerScore, answer
from mnemo.checkpoint import RECIPE, open_run
from mnemo.config import from_json
from mnemo.data.progress import ShowProgress
from mnemo.errors import MnemoError
from mnemo.recipe import Recipe
from mnemo.report.runs import Run, read_run
from mnemo.train import Monitor, create_run, train


class TaskPlace(Protocol):
    """As much of a job's place as this one needs."""

    @property
    def folder(self) -> Path: ...
    @property
    def monitor(self) -> Monitor: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def progress(self) -> ShowProgress: ...


def task_job(settings: dict[str, Any], place: TaskPlace) -> dict[str, Any]:
    """Accuracies over the whole test set, how training went, and how fast."""
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    if recipe.data.task is None:
        raise MnemoError("a job of kind 'task' needs a recipe with a task")
    folder = place.folder / "run"
    if not (folder / RECIPE).exists():
        create_run(recipe, folder, monitor=place.monitor)
    outcome = train(folder, monitor=place.monitor)
    values = _training(recipe, read_run(folder, "run")) | {"steps": outcome.step}
    values |= _accuracies(_answers(recipe, folder, place, published=False))
    if settings.get("published"):
        found = _accuracies(_answers(recipe, folder, place, published=True))
        values |= {f"published_{name}": value for name, value in found.items()}
    return values


def _answers(recipe: Recipe, folder: Path, place: TaskPlace, *, published: bool) -> AnswerScore:
    assert recipe.data.task is not None
    model = open_run(folder, "best", place.device).model
    segment = recipe.train.segment
    return answer(model, recipe.data.task, segment=segment, published=published, progress=place.progress)


def _accuracies(score: AnswerScore) -> dict[str, Any]:
    return {
        "character_accuracy": score.character_accuracy,
        "answer_accuracy": score.answer_accuracy,
        "samples": score.samples,
        "segments": score.segments,
        "segment": score.segment,
        "by_position": [round(share, 5) for share in score.by_position],
        "answer_seconds": round(score.seconds, 3),
    }


def _training(recipe: Recipe, run: Run) -> dict[str, Any]:
    """Tokens are those that were read; a run's own files count the predicted ones."""
    task = recipe.data.task
    assert task is not None
    share = task.num_tokens / int(task.predicted.sum())
    return {
        "parameters": run.parameters,
        "tokens": None if run.tokens is None else round(run.tokens * share),
        "tokens_per_second": None if run.tokens_per_second is None else round(run.tokens_per_second * share, 1),
        "seconds": run.seconds,
        "best_valid_loss": None if run.best is None else run.best.loss,
        "curve": [[metric.step, metric.loss] for metric in run.valid],
        "train_curve": _thinned([[metric.step, metric.loss] for metric in run.train]),
        "last_train_loss": statistics.fmean(metric.loss for metric in run.train[-3:]) if run.train else None,
    }


def _thinned(curve: list[list[float]], most: int = 200) -> list[list[float]]:
    """Not more points than a picture shows."""
    every = -(-len(curve) // most) or 1
    return curve[::every]
