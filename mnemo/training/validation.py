"""Scoring the validation set in the course of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from mnemo.model import Model
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.data import Data, Scored
from mnemo.training.divergence import require_finite
from mnemo.training.monitor import Monitor
from mnemo.training.optimizers import Average, NoAverage
from mnemo.training.processes import AnyWorld
from mnemo.training.run_progress import Progress
from mnemo.training.stop_signals import Interrupted, Stop, interruptible
from mnemo.training.training_log import TrainingLog


class Validation:
    """`whole_model`: opens the model with all its weights; `autocast`: the precision to compute in."""

    def __init__(
        self,
        data: Data,
        config: TrainConfig,
        world: AnyWorld,
        monitor: Monitor,
        whole_model: Callable[[], AbstractContextManager[Model]],
        average: Average | NoAverage,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.data, self.config, self.world, self.monitor = data, config, world, monitor
        self.whole_model, self.average, self.autocast = whole_model, average, autocast

    def is_due(self, progress: Progress) -> bool:
        step = progress.step
        if self.data.score is None or step == progress.evaluated:
            return False
        return step % self.config.eval_every == 0 or step == self.config.steps

    def run(self, progress: Progress, log: TrainingLog, stop: Stop) -> Progress:
        """Score the validation set; raise `Interrupted` at a signal."""
        with log.clock.pause(), self.average.applied(), self.whole_model() as model, self.autocast():
            scored = self._score(model, stop)
        require_finite("validation loss", scored.loss, progress.step, progress.cursor)
        log.write("valid", progress.step, {"loss": scored.loss, "tokens": scored.tokens})
        progress = progress.after_validation(scored.loss, self.config.schedule)
        self.monitor.evaluated(progress.step, scored.loss, progress.is_best)
        return progress

    def _score(self, model: Model, stop: Stop) -> Scored:
        """The score of all processes together; if one is interrupted, all are."""
        scored = self._own_score(model, stop)
        if self.world.agree(None if scored else 1) or scored is None:
            raise Interrupted
        if self.world.size == 1:
            return scored
        counts = scored.tokens if self.data.divided or self.world.rank == 0 else 0
        loss, tokens = self.world.sums([scored.loss * counts, counts])
        return Scored(loss / max(1.0, tokens), int(tokens))

    def _own_score(self, model: Model, stop: Stop) -> Scored | None:
        """The score of this process's rows; None if a signal interrupts it."""
        assert self.data.score is not None
        try:
            return self.data.score(model, interruptible(self.monitor.show, stop))
        except Interrupted:
            return None
