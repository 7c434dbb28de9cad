"""What a run reports while it trains: notes, progress lines, evaluations, progress bars."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from mnemo.progress import Advance, silent


class Status(NamedTuple):
    """The values of a progress line."""

    step: int
    steps: int
    loss: float
    """Nats per token since the last line"""
    lr: float
    tokens_per_second: float
    seconds_left: float


class Monitor(Protocol):
    """Receives what happens in a run, for example to print it."""

    def note(self, line: str) -> None: ...
    def trained(self, status: Status) -> None: ...
    def evaluated(self, step: int, loss: float, is_best: bool) -> None: ...
    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]: ...


class Unwatched:
    """A monitor that shows nothing."""

    def note(self, line: str) -> None:
        pass

    def trained(self, status: Status) -> None:
        pass

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        pass

    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]:
        return silent(label, total, unit=unit)
