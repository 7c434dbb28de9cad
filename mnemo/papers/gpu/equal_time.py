"""Training for the same time as another model, by the speeds of both alone on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnemo.config import from_json, to_json
from mnemo.papers.experiment import Budget, Cell
from mnemo.papers.gpu.text import lasting
from mnemo.papers.jobs import Place, job, train_and_score
from mnemo.recipes.recipe import Recipe

PACES = "paces"
"""Name of the cell that measures speeds, and of its values."""
JOB = "train-as-long"


def timing(budget: Budget, recipes: Mapping[str, Recipe]) -> Cell:
    """Tokens per second of every recipe. Alone, because trainings may share the device."""
    times = {"updates": 1, "rounds": 1} if budget == "self-test" else {"updates": 50, "rounds": 5}
    return Cell(
        name=PACES,
        job="long-pace",
        settings={"recipes": {name: to_json(recipe) for name, recipe in recipes.items()}, **times},
        labels={"cell": PACES},
        alone=True,
    )


@job(JOB)
def train_as_long(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """As `train`, with the steps that take as long as those of the recipe take with the model `instead_of`."""
    paces = place.values(PACES)[PACES]
    own, other = (paces[settings[name]]["tokens_per_second"] for name in ("model", "instead_of"))
    recipe = from_json(Recipe, settings["recipe"], "recipe")
    steps = max(1, round(own / other * recipe.train.steps))
    lasts = replace(recipe, train=lasting(recipe.train, steps))
    return train_and_score({"recipe": to_json(lasts), "scores": settings["scores"]}, place)
