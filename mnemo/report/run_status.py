"""The newest numbers of a run that is being trained, from the files in its folder."""

from __future__ import annotations

import math

from mnemo.report.runs import Run
from mnemo.training import Status

RECENT = 10
"""Logged steps from which the speed is computed."""


def planned_steps(found: Run) -> int:
    return found.recipe.train.steps if found.recipe is not None else found.last_step


def seconds_left(found: Run) -> float:
    """From the time between the last logged steps; NaN if there are too few."""
    recent = found.timing[-RECENT:]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return math.nan
    (first, began, _), (last, now, _) = recent[0], recent[-1]
    return max(0, planned_steps(found) - found.last_step) * (now - began) / (last - first)


def status(found: Run) -> Status | None:
    """The newest numbers; None before the first are logged."""
    if not found.train:
        return None
    rate = found.timing[-1][2] if found.timing else 0.0
    newest = found.train[-1]
    return Status(newest.step, planned_steps(found), newest.loss, found.lr or 0.0, rate, seconds_left(found))
