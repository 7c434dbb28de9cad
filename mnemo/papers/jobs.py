"""Jobs that make cells: training with scores, and others that the families register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mnemo.config import from_json, to_json
from mnemo.data.prepare import load
from mnemo.errors import MnemoError, unknown
from mnemo.evaluation.perplexity import evaluate
from mnemo.files.json_file import load_json
from mnemo.papers.experiment import Cell
from mnemo.papers.store import RESULT, RUN
from mnemo.progress import ShowProgress
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.tied_lengths import settle_lengths
from mnemo.report.runs import Metric, read_runs
from mnemo.storage.run_folder import open_run
from mnemo.training import Monitor, create_run, train
from mnemo.training.precision import autocast

MOST_POINTS = 400
"""Of a training curve in a result; validation curves are stored whole."""


class Stopped(Exception):
    """Raised when a signal ends the training of a cell, which resumes from its checkpoint in the next run."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class Place:
    """Folders and device of the cell that a job makes."""

    folder: Path
    """Of the cell; its training run is in `folder / RUN` and resumes from there."""
    grid: Path
    device: torch.device
    monitor: Monitor

    @property
    def run(self) -> Path:
        return self.folder / RUN

    @property
    def progress(self) -> ShowProgress:
        return self.monitor.show

    def of(self, cell: str) -> Path:
        """The folder of a cell in `after`."""
        return self.folder.parent / cell

    def values(self, cell: str) -> dict[str, Any]:
        """What a cell in `after` has measured."""
        return load_json(self.of(cell) / RESULT)["values"]


Job = Callable[[dict[str, Any], Place], dict[str, Any]]
JOBS: dict[str, Job] = {}
Needs = Callable[[dict[str, Any]], float]
NEEDS: dict[str, Needs] = {}
"""By name of the job: bytes that its settings need on one device, besides training the recipes in them."""
Trained = Callable[[dict[str, Any]], Any]
TRAINED: dict[str, Trained] = {}
"""By name of the job: the part of its settings with the recipes that it trains. Other jobs train all of them."""


def job(name: str, *, needs: Needs | None = None, trains: Trained | None = None) -> Callable[[Job], Job]:
    """Register a function as the job of this name."""

    def register(function: Job) -> Job:
        if name in JOBS:
            raise ValueError(f"two jobs are called {name}")
        JOBS[name] = function
        if needs is not None:
            NEEDS[name] = needs
        if trains is not None:
            TRAINED[name] = trains
        return function

    return register


def no_training(settings: dict[str, Any]) -> Any:
    """For jobs that only measure the recipes in their settings."""
    return None


def find_job(name: str) -> Job:
    if name not in JOBS:
        raise unknown("job", name, JOBS)
    return JOBS[name]


def training_cell(
    name: str,
    recipe: Recipe,
    labels: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Any]] | None = None,
) -> Cell:
    """Train a recipe, then score it; a score has a split and fields of EvalConfig, `no_memory` or `sliding`."""
    return Cell(name=name, job="train", settings=training_settings(recipe, scores), labels=dict(labels))


def training_settings(recipe: Recipe, scores: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Settings of the job `train`."""
    recipe = settle_lengths(recipe)
    return {"recipe": to_json(recipe), "scores": {key: dict(value) for key, value in (scores or {}).items()}}


@job("train")
def train_and_score(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    recipe = from_json(Recipe, settings["recipe"])
    values = train_here(recipe, place)
    scores = {name: score(place, how) for name, how in settings["scores"].items()}
    return values | {"scores": scores}


def begin_run(recipe: Recipe, place: Place, source: Path | None = None) -> None:
    """Create the run of a cell, unless it exists; a divergence is a result, so it ends the run."""
    if not (place.run / "recipe.json").exists():
        recipe = replace(recipe, train=replace(recipe.train, on_nan="stop"))
        create_run(recipe, place.run, source=source, monitor=place.monitor)


def train_here(recipe: Recipe, place: Place, name: str = "training") -> dict[str, Any]:
    """Start or resume training in the cell's folder, and return a summary of the run; `name` is for notes."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begin_run(recipe, place)
    outcome = train(place.run, monitor=place.monitor)
    if outcome.signal is not None:
        raise Stopped(outcome.signal)
    if outcome.early_end is not None:
        place.monitor.note(f"{name} {outcome.early_end}")
    (found,), _ = read_runs([place.run])
    return {
        "parameters": found.parameters,
        "steps": outcome.step,
        "tokens": found.tokens,
        "tokens_per_second": found.tokens_per_second,
        "training_seconds": found.seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        "best_valid_loss": None if outcome.best is None else outcome.best.loss,
        "curve": _curve(found.valid),
        "train_curve": _thin(_curve(found.train)),
    }


def _curve(metrics: list[Metric]) -> list[list[float]]:
    return [[metric.step, metric.loss] for metric in metrics]


def _thin(curve: list[list[float]]) -> list[list[float]]:
    stride = -(-len(curve) // MOST_POINTS) or 1
    return curve[::-1][::stride][::-1]


def score(place: Place, how: Mapping[str, Any]) -> dict[str, Any]:
    """Score the cell's run; `how` has a `split`, fields of `EvalConfig` and flags of `evaluate`."""
    options = dict(how)
    split = options.pop("split", "valid")
    flags = {name: options.pop(name) for name in ("no_memory", "sliding") if name in options}
    opened = open_run(place.run, device=place.device)
    recipe = opened.recipe
    corpus = load(recipe.data.corpus, show=place.progress)
    if split not in corpus.splits:
        raise MnemoError(f"corpus '{corpus.name}' has no {split} split")
    with autocast(recipe.train.precision, place.device):
        found = evaluate(
            opened.model,
            corpus.split(split),
            from_json(EvalConfig, options),
            segment=recipe.train.segment,
            context=recipe.train.context,
            documents=recipe.data.documents,
            order=recipe.data.order,
            start=opened.start,
            progress=place.progress,
            **flags,
        )
    return found.to_json()
