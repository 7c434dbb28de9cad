"""Requirements of a budget, checked before any training: prepared corpora, and a device that can hold its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from mnemo.config import canonical, from_json
from mnemo.cost.model_cost import describe
from mnemo.cost.training_cost import trained_tokens, training_bytes
from mnemo.data import corpus as corpora
from mnemo.data.known_corpora import PYTHON, missing
from mnemo.errors import MnemoError
from mnemo.model.memory_limits import bytes_if_too_small
from mnemo.papers.experiment import Budget, Cell, Experiment, objects_of
from mnemo.papers.jobs import NEEDS, TRAINED
from mnemo.recipes.recipe import Recipe

ON_A_GPU: tuple[Budget, ...] = ("small", "gpu", "paper")
MOST_COUNTED = 3
"""Recipes whose memory is counted: counting takes a second for each."""


def require_needs(experiment: Experiment, budget: Budget, device: torch.device) -> None:
    """Raise an error that names what is missing, if this machine cannot run the budget."""
    cells = experiment.cells(budget)
    recipes = {canonical(recipe): recipe for cell in cells for recipe in recipes_of(cell)}
    if budget in ON_A_GPU:
        _require_memory(experiment, budget, max(_training_bytes(recipes.values()), _measuring_bytes(cells)), device)
    for recipe in recipes.values():
        _require_corpus(recipe)


def differences(experiment: Experiment, budget: Budget) -> list[str]:
    """Where prepared corpora differ from the published ones, so that scores cannot be compared with the papers'."""
    recipes = [recipe for cell in experiment.cells(budget) for recipe in recipes_of(cell)]
    names = {recipe.data.corpus for recipe in recipes if recipe.data.task is None}
    found = [corpora.Corpus.open(name) for name in sorted(names) if corpora.find(name) is not None]
    return [difference for corpus in found for difference in corpus.mismatches]


def training_flops(cells: Iterable[Cell]) -> float:
    """FLOPs of all training in these cells."""
    trained = [recipe for cell in cells for recipe in _recipes_in(_trained(cell))]
    return sum(trained_tokens(recipe.train) * describe("", recipe).training_step for recipe in trained)


def _trained(cell: Cell) -> Any:
    """The part of a cell's settings with the recipes that it trains."""
    return TRAINED[cell.job](cell.settings) if cell.job in TRAINED else cell.settings


def _training_bytes(recipes: Iterable[Recipe]) -> float:
    largest = sorted(recipes, key=_work, reverse=True)[:MOST_COUNTED]
    return max(map(training_bytes, largest), default=0.0)


def _measuring_bytes(cells: Iterable[Cell]) -> float:
    """Needed by jobs that measure a model without training it."""
    return max((NEEDS[cell.job](cell.settings) for cell in cells if cell.job in NEEDS), default=0.0)


def _require_memory(experiment: Experiment, budget: Budget, needed: float, device: torch.device) -> None:
    available = bytes_if_too_small(device, needed)
    if available is not None:
        raise MnemoError(
            f"{experiment.name} at budget {budget} needs {needed / 2**30:,.1f} GiB of memory on one device, and this "
            f"one has {available / 2**30:,.1f} GiB: choose a smaller --budget or another machine"
        )


def recipes_of(cell: Cell) -> Iterator[Recipe]:
    """Every recipe in a cell's settings."""
    return _recipes_in(cell.settings)


def _recipes_in(settings: Any) -> Iterator[Recipe]:
    return (from_json(Recipe, dict(found)) for found in objects_of(settings, Recipe.__name__))


def _work(recipe: Recipe) -> int:
    """Grows roughly with the memory that training needs."""
    model, train = recipe.model, recipe.train
    keys = sum(model.memory.lengths(model.num_layers)) // model.num_layers + train.segment
    rows = train.batch // train.accumulate * (train.segment + train.context) * (1 + train.bptt)
    return rows * model.num_layers * (model.dim + model.inner_dim + keys) + model.vocab_size * model.dim


def _require_corpus(recipe: Recipe) -> None:
    name = recipe.data.corpus
    if recipe.data.task is None and name != PYTHON and corpora.find(name) is None:
        raise missing(name)
