"""What a run reports while it trains: notes, progress lines, evaluations, progress bars."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from mnemo.progress import Advance, silent


class Status(NamedTuple):
    """The values of a progress line."""

    step: int
    steps: int
    loss: float | None
    """Nats per token since the last line; None between lines of metrics, when it is still on the device"""
    lr: float
    tokens_per_second: float
    seconds_left: float


class Monitor(Protocol):
    """Receives what happens in a run, for example to print it."""

    def started(self, unit: str) -> None:
        """A run starts whose tokens have this unit: losses of some units are shown in bits."""

    def note(self, line: str) -> None: ...
    def trained(self, status: Status) -> None: ...
    def evaluated(self, step: int, loss: float, is_best: bool) -> None: ...
    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]: ...


class Unwatched:
    """A monitor that shows nothing."""

    def started(self, unit: str) -> None:
        pass

    def note(self, line: str) -> None:
        pass

    def trained(self, status: Status) -> None:
        pass

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        pass

    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]:
        return silent(label, total, unit=unit)


class Forwarding:
    """A monitor that passes everything on to another one; derived ones change or keep some of it."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def started(self, unit: str) -> None:
        self.monitor.started(unit)

    def note(self, line: str) -> None:
        self.monitor.note(line)

    def trained(self, status: Status) -> None:
        self.monitor.trained(status)

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self.monitor.evaluated(step, loss, is_best)

    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]:
        return self.monitor.show(label, total, unit=unit)


class _WithoutUnit(Forwarding):
    def started(self, unit: str) -> None:
        pass

    def trained(self, status: Status) -> None:
        if status.loss is not None:
            super().trained(status)


def with_unit(monitor: Monitor) -> Monitor:
    """The monitor itself, or one that keeps from it what monitors of 0.1.0, without `started`, do not expect."""
    if hasattr(monitor, "started"):
        return monitor
    message = f"{type(monitor).__name__} has no method started(unit): it misses lines between those of metrics"
    warnings.warn(f"{message}; mnemo.training.Unwatched is a base with all methods", DeprecationWarning, stacklevel=3)
    return _WithoutUnit(monitor)
