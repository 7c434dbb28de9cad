"""When a run saves a checkpoint, and why."""

from __future__ import annotations

import time

from mnemo.recipes.recipe import TrainConfig
from mnemo.storage.checkpoint import Reason
from mnemo.training.run_progress import Progress

LARGEST_SHARE = 0.03
"""Share of the time that saving by the clock may take: slow saves make the intervals longer."""


class SaveClock:
    """Decides whether so much time has passed since the last checkpoint that another one is due."""

    def __init__(self, minutes: float | None) -> None:
        """`minutes`: the shortest interval; None for no checkpoints by time."""
        self._interval = None if minutes is None else 60 * minutes
        self._cost, self._last = 0.0, time.monotonic()

    def saved(self, cost: float) -> None:
        """Start the next interval, after a save that took `cost` seconds."""
        self._cost, self._last = cost, time.monotonic()

    def is_late(self) -> bool:
        if self._interval is None:
            return False
        return time.monotonic() - self._last >= max(self._interval, self._cost / LARGEST_SHARE)


def reason_to_save(
    progress: Progress, config: TrainConfig, *, finished: bool, stopped: bool, is_late: bool
) -> Reason | None:
    """Why a checkpoint is due after the present step, or None.

    Of several reasons the first one below counts. `interval`, `best` and `end` depend on the recipe and its numbers
    only, so an interrupted run has the same checkpoints of these kinds as an uninterrupted one.
    """
    reasons: dict[Reason, bool] = {
        "interval": progress.step % config.checkpoint_every == 0,
        "best": progress.is_best,
        "end": finished,
        "signal": stopped,
        "clock": is_late,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
