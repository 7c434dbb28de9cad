"""Trained models scored with other attention lengths: the columns of Tables 5 and 8, and the last block of Table 5."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from mnemo.config import from_json, to_json
from mnemo.data.corpus import Split
from mnemo.data.prepare import load
from mnemo.evaluation.length_search import find_length, sweep_memory
from mnemo.evaluation.score import Score
from mnemo.evaluation.settings import resolve
from mnemo.model import Model
from mnemo.papers.experiment import Budget, Cell, Results
from mnemo.papers.figures import whole_points
from mnemo.papers.grid import PPL, Grid, Measure, Row
from mnemo.papers.jobs import RUN, Place, job
from mnemo.papers.tables import Column, score
from mnemo.recipes.recipe import EvalConfig, Recipe, TrainConfig
from mnemo.storage.run_folder import open_run
from mnemo.training.precision import autocast, safe_kernels

SEARCH, GIVEN = "xl-attention-length", "xl-longer-attention"
SEARCHED, SCORED = "lengths", "longer"
"""Parts of a grid: cells that search the best length, and cells that score given lengths."""
EVALUATION: dict[Budget, EvalConfig] = {
    "self-test": EvalConfig(batch=2, segment=4, limit=60),
    "small": EvalConfig(batch=20, segment=16, limit=100_000),
    "paper": EvalConfig(batch=10, segment=16),
}
"""Few new tokens at a time, so that all of them have nearly the same attention length."""
LONGEST: dict[Budget, int] = {"self-test": 20, "small": 1024, "paper": 1000}
"""Attention that a search tries."""
SHORTEST = Measure(unit="tokens", digits=0, key="shortest.attention", scale="tokens", part=f"-{SEARCHED}")
"""The shortest attention with a perplexity within 0.1% of the best."""


def perplexity_at(which: Literal["initial", "best"], budget: Budget) -> Measure:
    """On valid, at the attention length of training or at the best one; bytes need more digits than words."""
    return replace(PPL, key=f"{which}.loss", part=f"-{SEARCHED}", digits=2 if budget == "paper" else 4)


def search_columns(budget: Budget) -> list[Column]:
    return [
        score("ppl init", perplexity_at("initial", budget)),
        score("ppl best", perplexity_at("best", budget)),
        score("attention", SHORTEST),
    ]


def losses_by_length(grid: Grid, results: Results, row: Row, part: str = SEARCHED) -> dict[int, list[float]]:
    """Losses of all seeds at the attention lengths that were tried with each of them."""
    seeds = [dict(whole_points(each, "tried")) for _, each in grid.found(results, row, f"-{part}")]
    common = set.intersection(*map(set, seeds)) if seeds else set()
    return {int(length): [losses[length] for losses in seeds] for length in sorted(common)}


def searches(rows: Sequence[Row], budget: Budget) -> list[Cell]:
    """For every trained model, a search on valid for the attention length that is best for it."""
    options = {"longest": LONGEST[budget]}
    return [_scoring(cell, SEARCHED, SEARCH, EVALUATION[budget], options) for cell in Grid(rows=rows).cells]


def scores_at(rows: Sequence[Row], budget: Budget, lengths: Sequence[int]) -> list[Cell]:
    """For every trained model, its scores on valid at these attention lengths."""
    options = {"lengths": list(lengths)}
    return [_scoring(cell, SCORED, GIVEN, EVALUATION[budget], options) for cell in Grid(rows=rows).cells]


def _scoring(training: Cell, part: str, job: str, config: EvalConfig, options: dict[str, Any]) -> Cell:
    return Cell(
        name=f"{training.name}-{part}",
        job=job,
        settings={"run": training.name, "split": "valid", "evaluation": to_json(config), **options},
        labels=training.labels | {"part": part},
        after=(training.name,),
    )


def trained_attention(recipe: Recipe) -> int:
    return recipe.train.segment + max(recipe.model.memory.lengths(recipe.model.num_layers))


@dataclass(frozen=True)
class Trained:
    """A model and the text that it is scored on."""

    model: Model
    split: Split
    config: EvalConfig
    train: TrainConfig


@contextmanager
def trained(settings: dict[str, Any], place: Place) -> Iterator[Trained]:
    """The model that the cell `run` has trained, in the precision of its training."""
    opened = open_run(place.of(settings["run"]) / RUN, device=place.device)
    train, data = opened.recipe.train, opened.recipe.data
    split = load(data.corpus, show=place.progress).split(settings["split"])
    with safe_kernels(train.precision, place.device, place.monitor), autocast(train.precision, place.device):
        yield Trained(opened.model, split, from_json(EvalConfig, settings["evaluation"]), train)


@job(SEARCH)
def search_length(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    with trained(settings, place) as one:
        found = find_length(
            one.model,
            one.split,
            resolve(one.config, segment=one.train.segment),
            trained_span=one.train.segment + one.train.context,
            longest=settings["longest"],
            progress=place.progress,
        )
    return {
        "initial": _plain(found.initial),
        "best": _plain(found.best),
        "shortest": _plain(found.shortest),
        "tried": [[score.attention, score.loss] for score in found.tried],
        "trained": one.train.segment,
    }


def _plain(score: Score) -> dict[str, Any]:
    return {"attention": score.attention, "loss": score.loss}


@job(GIVEN)
def score_lengths(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    with trained(settings, place) as one:
        new = one.config.segment or one.train.segment
        memories = [length - new for length in settings["lengths"]]
        evaluation = resolve(one.config, segment=one.train.segment)
        scores = sweep_memory(one.model, one.split, evaluation, memories, place.progress)
    return {"tried": [[score.attention, score.loss] for score in scores]}
