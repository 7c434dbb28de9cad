"""Divergence: losses and gradients that are not finite, and losses or gradient norms that have risen for many steps."""

from __future__ import annotations

import math

from mnemo.data.streams import Cursor
from mnemo.errors import CheckFailed
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.loss_course import Course
from mnemo.training.monitor import Monitor

REMEDIES = (
    "a lower --train.optimizer.lr or a longer --train.schedule.warmup, --train.optimizer.clip, "
    "--train.optimizer.clip-mean, --train.z-loss 1e-4, --model.logit-cap 30, --model.qk-norm; see docs/divergence.md"
)
ADVICE = "possible remedies if it goes on: a lower learning rate, clip-mean, z-loss; see docs/divergence.md"


class Diverged(CheckFailed):
    """A loss or gradient that is not a finite number, or one that has risen for many steps."""

    def __init__(self, message: str, step: int = 0, cursor: Cursor | None = None) -> None:
        """`step`: the step in which it was found; `cursor`: the place of the next batch after that step."""
        super().__init__(message)
        self.step, self.cursor = step, cursor


def require_finite(name: str, value: float, step: int, cursor: Cursor | None = None) -> None:
    if not math.isfinite(value):
        raise Diverged(f"the {name} is {value} at step {step}", step, cursor)


class Watch:
    """Examines the numbers of every step in order, some steps after they were computed."""

    def __init__(self, config: TrainConfig, vocab_size: int, monitor: Monitor) -> None:
        self.config, self.vocab_size, self.monitor = config, vocab_size, monitor
        self._warned: set[str] = set()

    def examine(
        self, course: Course, step: int, cursor: Cursor, loss: float, norm: float, *, is_scored: bool = True
    ) -> Course:
        """The course after a step; raise `Diverged` if the run has diverged by then.

        `cursor`: the place of the next batch after the step. `is_scored`: whether any token of the step had a target;
        a step without one, such as the first segment of a task, has a loss of zero that says nothing.
        """
        require_finite("loss", loss, step, cursor)
        if self.config.precision != "fp16":  # whose scaler skips updates with a gradient that overflows
            require_finite("gradient norm", norm, step, cursor)
        if not is_scored:
            return course
        before, course = course, course.after(loss, norm, self.config, self.vocab_size)
        if self.config.on_nan == "rollback":
            problem = before.spike(loss, self.config.spike) or course.divergence(self.config)
            if problem is not None:
                raise Diverged(f"{problem}, at step {step}", step, cursor)
        self._warn(course, step)
        return course

    def _warn(self, course: Course, step: int) -> None:
        """Write a note about numbers that may end in a divergence, once for each cause."""
        for cause, line in course.warnings(self.config).items():
            if cause not in self._warned:
                self._warned.add(cause)
                self.monitor.note(f"step {step:,}: {line}; {ADVICE}")
