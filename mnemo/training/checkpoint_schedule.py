"""When a run saves a checkpoint, and why."""

from __future__ import annotations

from mnemo.recipes.recipe import TrainConfig
from mnemo.storage.checkpoint import Reason
from mnemo.training.run_progress import Progress


def reason_to_save(progress: Progress, config: TrainConfig, *, finished: bool, signal: int | None) -> Reason | None:
    """Why a checkpoint is due after the present step, or None.

    Of several reasons the first one below counts: `interval`, `best` and `end` depend on the recipe and its numbers
    only, so an interrupted run has the same checkpoints of these kinds as an uninterrupted one.
    """
    if progress.step % config.checkpoint_every == 0:
        return "interval"
    if progress.is_best:
        return "best"
    if finished:
        return "end"
    return None if signal is None else "signal"
