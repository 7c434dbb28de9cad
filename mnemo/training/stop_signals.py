"""Signals that stop a run at the next safe moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mnemo.progress import Advance, ShowProgress


def _signals(*names: str) -> tuple[signal.Signals, ...]:
    """Those that this operating system has: Windows lacks the last three."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


SIGNALS = _signals("SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP", "SIGUSR1")
NOTICES = _signals("SIGHUP", "SIGUSR1")
"""A closed terminal, and the usual notice of a scheduler: another signal may follow while the run is saved."""
ECHO_SECONDS = 1.0
"""Time in which further signals count as the first one: `timeout`, `make` and shells signal a process and its group."""


class Stop:
    """Remembers the first signal.

    A second one ends the process at once, unless one of the two is a notice, or the second comes within `ECHO_SECONDS`.
    In a process that is `patient`, it is only remembered.
    """

    signal: int | None = None
    insisted = False
    """Whether a second signal has come."""

    def __init__(self, patient: bool = False) -> None:
        self._patient = patient
        self._demanded: float | None = None
        """When the first signal came that is not a notice"""

    def receive(self, number: int, frame: Any) -> None:
        if self.signal is None:
            self.signal = number
        if number in NOTICES:
            return
        now = time.monotonic()
        if self._demanded is None:
            self._demanded = now
        elif now - self._demanded > ECHO_SECONDS:
            self._insist(number)

    def _insist(self, number: int) -> None:
        self.insisted = True
        if not self._patient:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def stop_on_signals(alone: bool = True) -> Iterator[Stop]:
    """Inside this context, `SIGNALS` are only remembered; outside the main thread they are left alone.

    Processes that are not `alone` may receive several signals at once, from the terminal and from torchrun, and so are
    not ended by a second one: torchrun kills processes that take too long. A notice that the process was started to
    ignore stays ignored: `nohup` does that with SIGHUP.
    """
    stop = Stop(patient=not alone)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    heeded = [each for each in SIGNALS if each not in NOTICES or signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, stop.receive) for each in heeded}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Interrupted(Exception):
    """Raised when a signal stops long work that will be repeated on resume."""


def interruptible(show: ShowProgress, stop: Stop) -> ShowProgress:
    """The same progress bars, which raise `Interrupted` at the first step after a signal."""

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
