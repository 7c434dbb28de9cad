"""What a run reports while it trains: notes, progress lines, evaluations, progress bars."""

from __future__ import annotations

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
        self.watcher = monitor

    def started(self, unit: str) -> None:
        self.watcher.started(unit)

    def note(self, line: str) -> None:
        self.watcher.note(line)

    def trained(self, status: Status) -> None:
        self.watcher.trained(status)

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self.watcher.evaluated(step, loss, is_best)

    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]:
        return self.watcher.show(label, total, unit=unit)
