"""The progress of a run: everything in a checkpoint that is not a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mnemo.data.streams import Cursor
from mnemo.errors import MnemoError, plural
from mnemo.files.safe_load import is_count, is_finite, require
from mnemo.recipes.recipe import ScheduleConfig, TrainConfig
from mnemo.training.loss_course import Course
from mnemo.training.optimizers import Plateau
from mnemo.training.rollbacks import Rollback

COUNTS = ("step", "tokens", "stale", "evaluated", "average_count", "metrics_bytes", "timing_bytes")
NEWER = {"skipped", "in_a_row", "usual_loss", "course", "norms", "healthy", "rollbacks"}
"""Fields that older checkpoints do not have"""


class Best(NamedTuple):
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Field names are those of the checkpoint's JSON."""

    cursor: Cursor
    """Place of the next batch"""
    past: tuple[Cursor, ...] = ()
    """Batches that the next update computes again before the next batch; the saved memory is the one before them"""
    step: int = 0
    """Updates so far, skipped ones included"""
    tokens: int = 0
    """Targets trained on"""
    seconds: float = 0.0
    """Time since the start, summed over interruptions"""
    interval: tuple[tuple[float, int], ...] = ()
    """Loss and number of targets of every step since the last line of metrics"""
    plateau: Plateau = field(default_factory=Plateau)
    best: Best | None = None
    stale: int = 0
    """Evaluations since the best"""
    evaluated: int = 0
    """The last step that was evaluated"""
    skipped: int = 0
    """Updates skipped because of their loss or gradient"""
    in_a_row: int = 0
    """Skipped updates since the last accepted one"""
    usual_loss: float | None = None
    """Running mean of the loss, for detecting spikes"""
    course: Course = field(default_factory=Course)
    norms: tuple[tuple[float, float], ...] = ()
    """Norms of weights and optimizer moments in the last checkpoints"""
    healthy: tuple[int, ...] = ()
    """Steps of the last healthy checkpoints, oldest first"""
    rollbacks: tuple[Rollback, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any], path: Path) -> Progress:
        check_progress(data, path)
        try:
            known = {name: data[name] for name in Progress.__dataclass_fields__ if name in data or name not in NEWER}
            known["past"] = tuple(data["past"])
            known["interval"] = tuple((float(loss), int(count)) for loss, count in data["interval"])
            known["plateau"] = Plateau(**data["plateau"])
            known["best"] = None if data["best"] is None else Best(*data["best"])
            known |= {name: read(data[name]) for name, read in READ_NEWER.items() if name in data}
            return Progress(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise MnemoError(f"{path} is damaged: {error}") from None

    @property
    def is_best(self) -> bool:
        """Whether the present step has the lowest validation loss so far."""
        return self.best is not None and self.best.step == self.step

    def after_validation(self, loss: float, schedule: ScheduleConfig) -> Progress:
        """The progress after the present step was evaluated."""
        evaluated = replace(self, evaluated=self.step, plateau=self.plateau.after(loss, schedule))
        if self.best is None or loss < self.best.loss:
            return replace(evaluated, best=Best(self.step, loss), stale=0)
        return replace(evaluated, stale=self.stale + 1)

    def is_finished(self, config: TrainConfig) -> bool:
        """Whether the run has done all steps, reached its goal, or stopped improving."""
        return self.step >= config.steps or self.early_end(config) is not None

    def early_end(self, config: TrainConfig) -> str | None:
        """At which step the run ends before its last one, and why; None if it does not."""
        patience, goal = config.patience, config.goal
        if self.step >= config.steps:
            return None
        ended = f"ended after step {self.step:,} of {config.steps:,}"
        if goal is not None and self.best is not None and self.best.loss <= goal:
            return f"{ended}: the validation loss of {self.best.loss:.4g} nats has reached the goal of {goal:g}"
        if patience is not None and self.stale >= patience:
            return f"{ended}: no better validation loss in {plural(self.stale, 'evaluation')}"
        return None


def mean_loss(interval: Sequence[tuple[float, int]]) -> float | None:
    """Mean over all targets of an interval; None if every step in it was skipped."""
    tokens = sum(count for _, count in interval)
    return sum(loss * count for loss, count in interval) / tokens if tokens else None


READ_NEWER: dict[str, Callable[[Any], Any]] = {
    "course": lambda data: Course(**data),
    "norms": lambda data: tuple(map(tuple, data)),
    "healthy": tuple,
    "rollbacks": lambda data: tuple(Rollback(*each) for each in data),
}


def check_progress(data: Mapping[str, Any], path: Path) -> None:
    """Raise MnemoError if the JSON of a checkpoint does not have the expected form."""
    best, plateau = data.get("best"), data.get("plateau")
    require(
        {
            **{name: is_count(data.get(name)) for name in COUNTS},
            "seconds": is_finite(data.get("seconds")),
            "cursor": _is_cursor(data.get("cursor")),
            "past": isinstance(data.get("past"), list) and all(map(_is_cursor, data["past"])),
            "interval": isinstance(data.get("interval"), list) and all(map(_is_loss, data["interval"])),
            "best": best is None or (_is_list(best, 2) and is_count(best[0]) and is_finite(best[1])),
            "plateau": isinstance(plateau, dict) and _is_plateau(plateau),
            "course": Course.is_valid(data.get("course", {})),
            "norms": _is_list_of(_is_norms, data.get("norms", [])),
            "healthy": _is_list_of(is_count, data.get("healthy", [])),
            "rollbacks": _is_list_of(Rollback.is_valid, data.get("rollbacks", [])),
        },
        path,
    )


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_list_of(holds: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_norms(value: Any) -> bool:
    return _is_list(value, 2) and all(map(is_finite, value))


def _is_loss(value: Any) -> bool:
    return _is_list(value, 2) and is_finite(value[0]) and is_count(value[1])


def _is_plateau(value: Mapping[str, Any]) -> bool:
    known = {"factor": is_finite, "best": lambda best: best is None or is_finite(best), "bad": is_count}
    return value.keys() == known.keys() and all(holds(value[name]) for name, holds in known.items())


def _is_cursor(value: Any) -> bool:
    """Counts, or lists of them; the stream checks which ones it needs, and their ranges."""
    if not isinstance(value, dict) or not all(is_count(value.get(name)) for name in ("epoch", "step")):
        return False
    return all(map(_is_counts, value.values()))


def _is_counts(value: Any) -> bool:
    return all(map(_is_counts, value)) if isinstance(value, list) else is_count(value)
