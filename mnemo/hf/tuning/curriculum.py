"""A curriculum that is decided by accuracy: the next stage begins when held-out samples of this one are answered.

All decisions are recorded with the step from which they hold, so that a resumed run draws the same samples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class CurriculumState:
    begins: list[int] = field(default_factory=lambda: [0])
    """First step of each stage that was reached"""
    checks: list[dict[str, Any]] = field(default_factory=list)
    """Measured accuracies on held-out samples"""
    cooldown: tuple[float, int] | None = None
    """First and last step of the falling learning rate"""
    seconds: float = 0.0
    """Time of training in all calls"""

    @property
    def stage(self) -> int:
        return len(self.begins) - 1

    def stage_at(self, step: int) -> int:
        """Return the number of the stage at a step."""
        return sum(begin <= step for begin in self.begins) - 1

    def record(self, step: int, accuracy: float, promote: float, num_stages: int) -> bool:
        """Record an accuracy that was measured after `step` steps; returns whether a new stage begins."""
        self.checks.append({"step": step, "stage": self.stage, "accuracy": accuracy})
        reached = accuracy >= promote and self.stage + 1 < num_stages
        if reached:
            self.begins.append(step)
        return reached

    def rate(self, step: int, warmup: int) -> float:
        """Return the learning rate at a step, as a share of the largest one."""
        return min(1.0, (step + 1) / max(1, warmup)) * self._cooled(step)

    def end_at(self, step: int, last: int) -> None:
        """Let the learning rate fall to zero at the step `last`, from what it is at `step`."""
        level = self._cooled(step)
        self.cooldown = (last - (last - step) / level if level else step, last)

    def _cooled(self, step: int) -> float:
        if self.cooldown is None:
            return 1.0
        begin, end = self.cooldown
        return min(1.0, max(0.0, (end - step) / max(1, end - begin)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, data: dict[str, Any]) -> None:
        """Take over the recorded decisions of a checkpoint."""
        self.begins, self.checks = list(data["begins"]), list(data["checks"])
        self.cooldown = None if data["cooldown"] is None else tuple(data["cooldown"])
        self.seconds = float(data["seconds"])
