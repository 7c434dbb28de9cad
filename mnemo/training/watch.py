"""Whoever watches a run, and the signals that stop one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

from mnemo.progress import Advance, ShowProgress, silent

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Status(NamedTuple):
    """What a progress line shows."""

    step: int
    steps: int
    loss: float
    """Nats per token since the last line"""
    lr: float
    tokens_per_second: float
    seconds_left: float


class Monitor(Protocol):
    def note(self, line: str) -> None: ...
    def trained(self, status: Status) -> None: ...
    def evaluated(self, step: int, loss: float, is_best: bool) -> None: ...
    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]: ...


class Unwatched:
    def note(self, line: str) -> None:
        pass

    def trained(self, status: Status) -> None:
        pass

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        pass

    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]:
        return silent(label, total, unit=unit)


ECHO_SECONDS = 1.0
"""In which further signals are taken for the first one: `timeout`, `make` and shells signal a process and its group."""


class Stop:
    """Set by the first signal; a second one ends the process at once, where it is not to be patient."""

    signal: int | None = None

    def __init__(self, patient: bool = False) -> None:
        self._patient, self._asked = patient, 0.0

    def receive(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._asked = number, now
        elif not self._patient and now - self._asked > ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def stop_on_signals(alone: bool = True) -> Iterator[Stop]:
    """Within this context SIGINT and SIGTERM are noted, not obeyed; threads other than the main one see none.

    Processes that are not `alone` may be sent several at once, by the terminal and by torchrun; that one kills them
    where they take too long.
    """
    stop = Stop(patient=not alone)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {each: signal.signal(each, stop.receive) for each in SIGNALS}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Interrupted(Exception):
    """A signal asked to stop in the middle of long work that will be done again."""


def interruptible(show: ShowProgress, stop: Stop) -> ShowProgress:
    """The same progress, whose work is left with `Interrupted` as soon as a signal arrives."""

    @contextmanager
    def shown(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Advance]:
        with show(label, total, unit=unit) as bar:
            yield _Interruptible(bar, stop)

    return shown


class _Interruptible:
    def __init__(self, bar: Advance, stop: Stop) -> None:
        self._bar, self._stop = bar, stop

    def advance(self, count: float = 1, note: str = "") -> None:
        self._bar.advance(count, note)
        if self._stop.signal is not None:
            raise Interrupted
