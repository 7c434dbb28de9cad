"""The history of a run's rollbacks: which checkpoint to go back to, and at which learning rate to continue.

Everything here depends on steps and losses only, never on time. A run that is killed at any moment and resumed
meets the same divergence again, and answers in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mnemo.files.safe_load import is_count, is_finite
from mnemo.recipes.recipe import HealthConfig

MOST_TRIES = 2
"""Rollbacks to one checkpoint before an older one is used, if there is one."""


class Rollback(NamedTuple):
    """Field names are those of the event in metrics.jsonl."""

    bad_step: int
    """The step in which the divergence was found"""
    back_to: int
    """The step of the checkpoint that the run went back to"""
    cause: str
    rate_factor: float
    """Factor of the learning rate until step `slower_until`"""
    slower_until: int

    @staticmethod
    def is_valid(data: Any) -> bool:
        """Whether JSON of a checkpoint describes a rollback."""
        if not isinstance(data, list) or len(data) != len(Rollback._fields):
            return False
        bad_step, back_to, cause, factor, until = data
        return all(map(is_count, (bad_step, back_to, until))) and isinstance(cause, str) and is_finite(factor)

    def event(self) -> dict[str, Any]:
        """A line of metrics.jsonl."""
        passed = self.bad_step - self.back_to
        return {"step": self.back_to, "split": "event", "event": "rollback", **self._asdict(), "passed": passed}

    def describe(self) -> str:
        """One line for users."""
        rate = f", at {self.rate_factor:g} times the learning rate until step {self.slower_until:,}"
        return (
            f"{self.cause}: back to step {self.back_to:,}, without the batches of steps {self.back_to + 1:,} to "
            f"{self.bad_step:,}{rate if self.rate_factor < 1 else ''}"
        )


def choose_target(healthy: Sequence[int], earlier: Sequence[Rollback], bad_step: int) -> int | None:
    """The step of the checkpoint to go back to, or None; `healthy`: steps of healthy checkpoints, oldest first."""
    possible = [step for step in healthy if step < bad_step]
    for step in reversed(possible):
        if sum(each.back_to == step for each in earlier) < MOST_TRIES:
            return step
    return possible[0] if possible else None


def next_rollback(
    cause: str, bad_step: int, back_to: int, earlier: Sequence[Rollback], config: HealthConfig
) -> Rollback:
    """The answer to a divergence: the learning rate is lowered if the last divergence was not long before."""
    factor = 1.0
    if earlier and bad_step <= earlier[-1].bad_step + config.slower_steps:
        factor = config.slower * earlier[-1].rate_factor
    return Rollback(bad_step, back_to, cause, factor, bad_step + config.slower_steps)


def rate_factor(rollbacks: Sequence[Rollback], step: int) -> float:
    """Factor of the learning rate in the update after `step` others."""
    return rollbacks[-1].rate_factor if rollbacks and step < rollbacks[-1].slower_until else 1.0
