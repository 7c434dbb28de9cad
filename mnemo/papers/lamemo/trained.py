"""Models that are trained to be measured afterwards, and how a measuring cell opens them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mnemo.data.corpus import Corpus
from mnemo.data.prepare import load
from mnemo.papers.experiment import Budget, Cell, CellResult, Results
from mnemo.papers.jobs import Place
from mnemo.papers.lamemo import models
from mnemo.papers.lamemo.comparison import trained_row
from mnemo.papers.lamemo.models import SEED, memory_of, published
from mnemo.recipes.lamemo import WORDS
from mnemo.recipes.recipe import Recipe
from mnemo.report.svg import slugify
from mnemo.storage.run_folder import LoadedRun, open_run

TRAINED = "The models are trained first, in cells of the same grid."
BEYOND = (
    "small: training has distances below 256; in the committed results LaMemo fails beyond. In smaller models, "
    "gradients of the memorising coefficient make position weights so large that they fail likewise; there, clamped "
    "distances help, and so does a coefficient without gradients (docs/lamemo.md)."
)


def recipe_of(budget: Budget, model: str, seed: int = SEED) -> Recipe:
    """At `paper` that of Table 1."""
    if budget == "paper":
        return published("lamemo-wikitext103", memory_of(model, WORDS), seed)
    size = models.SELF_TEST if budget == "self-test" else models.ANALYSED
    return size.recipe(memory_of(model, size.length), seed)


def trained_then_measured(budget: Budget, names: Sequence[str], job: str, settings: dict[str, Any]) -> list[Cell]:
    """For every model a cell that trains it, and one that measures it afterwards."""
    training = [trained_row(name, recipe_of(budget, name), budget, 1).cell(SEED) for name in names]
    return training + [
        Cell(
            name=f"look-{slugify(name)}",
            job=job,
            settings=settings | {"trained": first.name, "training": first.fingerprint},
            labels={"look": name},
            after=(first.name,),
        )
        for name, first in zip(names, training, strict=True)
    ]


class Opened(NamedTuple):
    run: LoadedRun
    corpus: Corpus

    @property
    def segment(self) -> int:
        return self.run.recipe.train.segment


def open_trained(settings: dict[str, Any], place: Place) -> Opened:
    run = open_run(place.of(settings["trained"]) / "run", device=place.device)
    return Opened(run, load(run.recipe.data.corpus, show=place.progress))


def measured(results: Results, *models: str) -> dict[str, CellResult]:
    """By model, those that have been measured."""
    found = {model: results.one(f"look-{slugify(model)}") for model in models}
    return {model: each for model, each in found.items() if each is not None and each.values}
