"""Monitors that interrupt training."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mnemo.progress import Advance
from mnemo.training import Status, Unwatched


class Signaller(Unwatched):
    """Sends a signal to its own process after a step, or without a step during the first evaluation."""

    def __init__(self, number: int, step: int | None = None) -> None:
        self.number, self.step = number, step

    def trained(self, status: Status) -> None:
        if status.step == self.step:
            os.kill(os.getpid(), self.number)

    @contextmanager
    def show(self, label: str, total: float | None = None, *, unit: str = "") -> Iterator[Advance]:
        yield self

    def advance(self, count: float = 1, note: str = "") -> None:
        if self.step is None:
            os.kill(os.getpid(), self.number)


class StoppedWhenEvaluated(Unwatched):
    """Sends SIGTERM to its own process once a step is evaluated."""

    def __init__(self, step: int) -> None:
        self.step = step

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class Notes(Unwatched):
    """Keeps all notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)
