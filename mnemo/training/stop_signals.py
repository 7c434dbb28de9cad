"""Signals that stop a run at the next safe moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
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

    def __init__(self, patient: bool, tell: Callable[[str], None]) -> None:
        """`tell`: is given a line for the user at the first signal; it must be safe in a handler of signals."""
        self._patient, self._tell = patient, tell
        self._demanded: float | None = None
        """When the first signal came that is not a notice"""

    def receive(self, number: int, frame: Any) -> None:
        if self.signal is None:
            self.signal = number
            self._tell(self._acknowledgement(number))
        if number in NOTICES:
            return
        now = time.monotonic()
        if self._demanded is None:
            self._demanded = now
        elif now - self._demanded > ECHO_SECONDS:
            self._insist(number)

    def _acknowledgement(self, number: int) -> str:
        if self._patient or number in NOTICES:
            return "mnemo: stopping after this step"
        return "mnemo: stopping after this step; a second Ctrl-C stops at once, without saving"

    def _insist(self, number: int) -> None:
        self.insisted = True
        if not self._patient:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _silent(line: str) -> None: ...


def _standard_error() -> Callable[[str], None]:
    """A function that writes a line to it at once; one that does nothing if it is no file, as in a notebook.

    Not through `sys.stderr`, which the signal may have interrupted while it was written to. On a terminal, the line
    begins a new one: Ctrl-C has left `^C` there, and a live display its bar.
    """
    try:
        handle = sys.stderr.fileno()
        begin = "\n" if os.isatty(handle) else ""
    except (AttributeError, OSError, ValueError):
        return _silent

    def write(line: str) -> None:
        with suppress(OSError):  # the terminal is closed
            os.write(handle, f"{begin}{line}\n".encode())

    return write


@contextmanager
def stop_on_signals(alone: bool = True, tell: bool = False) -> Iterator[Stop]:
    """Inside this context, `SIGNALS` are only remembered; outside the main thread they are left alone.

    `tell`: acknowledge the first on stderr, since a step can take long. Processes of multiprocessing leave that to the
    one that has started them.

    Processes that are not `alone` may receive several signals at once, from the terminal and from torchrun, and so are
    not ended by a second one: torchrun kills processes that take too long. A notice that the process was started to
    ignore stays ignored: `nohup` does that with SIGHUP.
    """
    stop = Stop(not alone, _standard_error() if tell and parent_process() is None else _silent)
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
