"""The job `task`: train a model on an algorithmic task, then let it answer the whole test set.

    settings = {"recipe": to_json(recipe), "published": False}

`published` measures in the released code's way too; those accuracies have names of their own.
"""

from __future__ import annotations

from typing import Any

from mnemo.answers import AnswerScore, answer
from mnemo.checkpoint import open_run
from mnemo.config import from_json
from mnemo.errors import MnemoError
from mnemo.experiments.jobs import Place, job, train_here
from mnemo.recipe import Recipe


@job("task")
def task_job(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Accuracies over the whole test set, how training went, and how fast."""
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    if recipe.data.task is None:
        raise MnemoError("a job of kind 'task' needs a recipe with a task")
    values = _in_tokens_read(recipe, train_here(recipe, place))
    values |= _accuracies(_answers(recipe, place, published=False))
    if settings.get("published"):
        found = _accuracies(_answers(recipe, place, published=True))
        values |= {f"published_{name}": value for name, value in found.items()}
    return values


def _answers(recipe: Recipe, place: Place, *, published: bool) -> AnswerScore:
    assert recipe.data.task is not None
    model = open_run(place.run, "best", place.device).model
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


def _in_tokens_read(recipe: Recipe, values: dict[str, Any]) -> dict[str, Any]:
    """A run's own files count the tokens that are predicted."""
    task = recipe.data.task
    assert task is not None
    share = task.num_tokens / int(task.predicted.sum())
    counted = {name: values[name] for name in ("tokens", "tokens_per_second")}
    return values | {name: None if count is None else round(count * share, 1) for name, count in counted.items()}
