"""Fit the demo into its time: measure how fast this machine trains, and cut the steps of compared models alike.

And show its progress, at most one line a second.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mnemo.cli.demo_training import Comparison, DemoSize
from mnemo.recipes.recipe import Recipe
from mnemo.training import Forwarding, Monitor, Outcome, Status, Unwatched

SECONDS_BETWEEN_REPORTS = 1.0
MEASURED_STEPS = 5
"""Steps that are trained to measure the speed; the first one is slower, is not reported, and does not count."""
MEASURED_SHARE = 10
"""A measurement scores one symbol of this many."""
FEWEST_STEPS = 10
"""Trained however slow the machine is, so that every model has a curve and a score."""


class Throttled(Forwarding):
    """Forward to a monitor, progress lines at most once a second."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(monitor)
        self._forwarded = 0.0

    def trained(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._forwarded >= SECONDS_BETWEEN_REPORTS or status.step == status.steps:
            self._forwarded = now
            super().trained(status)


class Stopwatch(Unwatched):
    """Measure the time between the steps that are reported, and that of the evaluation after the last one."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, float]] = []
        self.evaluation = 0.0

    def trained(self, status: Status) -> None:
        self._reports.append((status.step, time.monotonic()))

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self.evaluation = time.monotonic() - self._reports[-1][1]

    @property
    def step(self) -> float:
        (first, begin), (last, end) = self._reports[0], self._reports[-1]
        return (end - begin) / (last - first)


def seconds_per_step(recipe: Recipe, train: Callable[[Path, Recipe, Monitor], Outcome]) -> float:
    """Measured time of one step of training, with its share of the evaluations."""
    symbols, every = recipe.evaluation.limit, recipe.train.eval_every
    scale = MEASURED_SHARE if symbols else 1
    few = replace(recipe.evaluation, limit=symbols // scale if symbols else None)
    config = replace(
        recipe.train,
        steps=MEASURED_STEPS,
        log_every=1,
        eval_every=MEASURED_STEPS,
        checkpoint_every=MEASURED_STEPS,
    )
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(Path(folder) / "run", replace(recipe, train=config, evaluation=few), watch)
    if outcome.signal is not None:
        raise KeyboardInterrupt
    return watch.step + watch.evaluation * scale / every


@dataclass(frozen=True)
class Fitted:
    """Steps of one comparison that fit into its time."""

    about: str
    steps: int
    planned: int
    slowness: float
    """Time that all planned steps would take, as a multiple of the time that there is."""

    @property
    def is_cut(self) -> bool:
        return self.steps < self.planned

    def __str__(self) -> str:
        return f"{self.about}: {self.steps:,} of {self.planned:,} steps"


def fit_steps(comparison: Comparison, size: DemoSize, seconds: float) -> Fitted:
    """The number of steps that every model of the comparison can train, so that all together take `seconds`."""
    planned = comparison.steps(size)
    each = [seconds_per_step(recipe(size), comparison.train) for recipe in comparison.recipes.values()]
    slowness = sum(each) * planned / max(seconds, 1e-9)
    if slowness <= 1:
        return Fitted(comparison.about, planned, planned, slowness)
    steps = math.floor(planned / slowness / FEWEST_STEPS) * FEWEST_STEPS
    return Fitted(comparison.about, min(planned, max(FEWEST_STEPS, steps)), planned, slowness)


def enough_minutes(minutes: float, slowness: float) -> int:
    """Whole minutes in which the demo would not be cut at the measured speed."""
    return max(math.ceil(minutes * slowness * 1.1), math.floor(minutes) + 1)
