"""Training for the same time as another model, by the speeds of both alone on the device."""

from __future__ import annotations

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
    paces = place.values(SPEED)["paces"]
    own, other = (paces[settings[name]]["tokens_per_second"] for name in ("model", "instead_of"))
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    steps = max(1, round(own / other * recipe.train.steps))
    lasts = replace(recipe, train=with_steps(recipe.train, steps))
    return train_and_score({"recipe": to_json(lasts), "scores": settings["scores"]}, place)
