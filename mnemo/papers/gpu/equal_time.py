"""Training for the same time as another model, by the speeds of both alone on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnemo.config import from_json, to_json
from mnemo.papers.gpu.text import with_steps
from mnemo.papers.jobs import Place, job, train_and_score
from mnemo.recipes.recipe import Recipe

SPEED = "speed"
"""Name of the cell that measures both."""
JOB = "train-as-long"


@job(JOB)
def train_as_long(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """As `train`, with the steps that take as long as those of the recipe take with the model `instead_of`."""
    ratio = speed_ratio(place.values(SPEED), settings["model"], settings["instead_of"])
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    lasts = replace(recipe, train=with_steps(recipe.train, equal_steps(ratio, recipe.train.steps)))
    return train_and_score({"recipe": to_json(lasts), "scores": settings["scores"]}, place)


def speed_ratio(measured: Mapping[str, Any], model: str, other: str) -> float:
    """How many times as fast a model trains as another; `measured`: values of the cell SPEED."""
    return tokens_per_second(measured, model) / tokens_per_second(measured, other)


def tokens_per_second(measured: Mapping[str, Any], model: str) -> float:
    return measured["paces"][model]["tokens_per_second"]


def equal_steps(ratio: float, steps: int) -> int:
    """Steps of a model that take as long as `steps` of another; `ratio`: how many times as fast it trains."""
    return max(1, round(ratio * steps))
