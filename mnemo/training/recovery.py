"""The answer to a divergence: go back to a healthy checkpoint, and continue after the batches that led to it."""

from __future__ import annotations

from dataclasses import replace

import torch

from mnemo.memory.state import tree_map
from mnemo.recipes.recipe import TrainConfig
from mnemo.storage.checkpoint import Checkpoint
from mnemo.training.checkpointing import RunCheckpoints, TrainingState
from mnemo.training.distributed import Rows
from mnemo.training.divergence import REMEDIES, Diverged
from mnemo.training.monitor import Monitor
from mnemo.training.rollbacks import choose_target, next_rollback
from mnemo.training.training_log import TrainingLog


class Recovery:
    """Rolls a run back in all processes, or raises `Diverged` if the run is to stop."""

    def __init__(self, config: TrainConfig, checkpoints: RunCheckpoints, rows: Rows, monitor: Monitor) -> None:
        self.config, self.checkpoints, self.rows, self.monitor = config, checkpoints, rows, monitor

    def roll_back(self, error: Diverged, state: TrainingState, log: TrainingLog) -> None:
        """Restore a healthy checkpoint, with empty memories, before the first batch after the bad step.

        Nothing is saved: if the process ends now, a resumed run meets the same divergence and arrives here again.
        """
        found = self._find_target(error, state)
        rollbacks, healthy = state.progress.rollbacks, state.progress.healthy
        new = next_rollback(str(error), error.step, found.step, rollbacks, self.config.health)
        state.restore(found, self.rows, self.config, self.checkpoints.world)
        # The text before the next batch is not the one in these memories.
        state.states = tuple(tree_map(torch.zeros_like, states) for states in state.states)
        known = len(state.progress.rollbacks)
        state.progress = replace(
            state.progress,
            cursor=error.cursor or state.progress.cursor,
            past=(),
            rollbacks=(*rollbacks, new),
            healthy=tuple(step for step in healthy if step <= found.step),
        )
        self.checkpoints.go_back(found, state.progress.best)
        log.go_back(found.progress, [each.event() for each in state.progress.rollbacks[known:]])
        number = f"rollback {len(rollbacks) + 1} of at most {self.config.health.rollbacks}"
        self.monitor.note(f"{number}: {new.describe()}")

    def _find_target(self, error: Diverged, state: TrainingState) -> Checkpoint:
        progress, config = state.progress, self.config
        if config.on_nan != "rollback":
            raise self._stop(error)
        if len(progress.rollbacks) >= config.health.rollbacks:
            raise self._stop(error, f" after {len(progress.rollbacks):,} rollbacks (--train.health.rollbacks)")
        step = choose_target(progress.healthy, progress.rollbacks, error.step)
        found = None if step is None else self.checkpoints.find_whole([s for s in progress.healthy if s <= step])
        if found is None:
            raise self._stop(error, " without a healthy checkpoint")
        return found

    def _stop(self, error: Diverged, why: str = "") -> Diverged:
        return Diverged(f"{error}; training stops{why}, {self.checkpoints.describe()}; possible remedies: {REMEDIES}")
