"""Which attention length serves a trained model best: the columns of Tables 5 and 8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mnemo.config import from_json, to_json
from mnemo.data.corpus import Split
from mnemo.data.prepare import load
from mnemo.evaluation.length_search import find_length
from mnemo.evaluation.score import Score
from mnemo.evaluation.settings import resolve
from mnemo.model import Model
from mnemo.papers.experiment import Cell, CellResult, Results, look_up
from mnemo.papers.jobs import RUN, Place, job
from mnemo.papers.xl.comparing import Measured, perplexity, spread
from mnemo.recipes.recipe import EvalConfig, TrainConfig
from mnemo.storage.run_folder import open_run
from mnemo.training.precision import autocast, safe_kernels

SEARCH = "xl-attention-length"


def search_cell(training: Cell, config: EvalConfig, longest: int) -> Cell:
    """Lengthen the attention of what `training` trains, on the validation set, as the paper's tables do."""
    return scoring_cell(training, "lengths", SEARCH, config, {"longest": longest})


def scoring_cell(training: Cell, part: str, job: str, config: EvalConfig, options: dict[str, Any]) -> Cell:
    """Score what `training` trains on the validation set."""
    return Cell(
        name=f"{training.name}-{part}",
        job=job,
        settings={"run": training.name, "split": "valid", "evaluation": to_json(config), **options},
        labels=training.labels | {"part": part},
        after=(training.name,),
    )


@dataclass(frozen=True)
class Trained:
    """A model and the text that it is scored on."""

    model: Model
    split: Split
    config: EvalConfig
    train: TrainConfig


@contextmanager
def trained(settings: dict[str, Any], place: Place) -> Iterator[Trained]:
    """What the cell `run` trained, in the precision of its training."""
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


def searches(results: Results, **labels: Any) -> list[CellResult]:
    found = results.select(part="lengths", **labels)
    return [cell for cell in found if look_up(cell.values, "best.loss") is not None]


def ppl(label: str, cells: Sequence[CellResult], which: str = "best") -> Measured:
    """Perplexities at the `initial` or the `best` attention length, one a seed."""
    return Measured(label, [perplexity(cell.values[which]["loss"]) for cell in cells])


def lengths(label: str, cells: Sequence[CellResult]) -> Measured:
    """The shortest attention that comes within 0.1% of the best."""
    return Measured(label, [float(cell.values["shortest"]["attention"]) for cell in cells])


def gains(label: str, cells: Sequence[CellResult]) -> Measured:
    """Share of the perplexity that the best length takes off that of the training length."""
    values = [1 - perplexity(cell.values["best"]["loss"] - cell.values["initial"]["loss"]) for cell in cells]
    return Measured(label, values)


def found_columns(cells: Sequence[CellResult]) -> list[str]:
    """Perplexity at the training length, the best one, and the length that reaches it."""
    return [spread(one.values) for one in (ppl("", cells, "initial"), ppl("", cells), lengths("", cells))]
