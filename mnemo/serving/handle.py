"""Handles of submitted jobs: the events of a job while it is computed, its result, and a way to cancel it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mnemo.errors import MnemoError

if TYPE_CHECKING:
    from mnemo.inference.generation import AnyState
    from mnemo.serving.engine import Job


@dataclass(frozen=True)
class Token:
    """A token that was written."""

    id: int
    logprob: float
    """Under the model itself: without temperature, top-k and top-p"""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens and their log-probabilities, likeliest first"""


@dataclass(frozen=True)
class Progress:
    """A piece of a text that was read."""

    tokens: int
    """Tokens of the job read so far"""
    nats: float
    """Sum of the losses of the job so far"""
    losses: tuple[float, ...] = ()
    """Losses of the tokens of this piece, in nats, if they are wanted; the first token of an empty text has none"""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each of these losses the likeliest tokens and their log-probabilities, if they are wanted"""


Event = Token | Progress


@dataclass(frozen=True)
class Result:
    state: AnyState
    """After the last token of the events; the state of the job itself if there were none"""
    tokens: int
    """Tokens read or written"""
    nats: float
    """Sum of their losses, or of their negative log-probabilities"""
    predicted: int
    """Tokens in that sum: all except the first token of an empty text"""
    cancelled: bool = False


class LoopWaker:
    """Sets events of an event loop from other threads, with one wake-up of the loop for many of them.

    A step of an engine has a token for every text; waking the loop for each would cost more than the step.
    """

    _of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker] = WeakKeyDictionary()
    _lock = threading.Lock()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._pending: deque[asyncio.Event] = deque()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopWaker:
        with cls._lock:
            return cls._of_loops.setdefault(loop, cls(loop))

    def wake(self, event: asyncio.Event) -> None:
        """Set an event; called from any thread."""
        with self._lock:
            self._pending.append(event)
            first = len(self._pending) == 1
        loop = self._loop()
        if first and loop is not None:
            with suppress(RuntimeError):  # the event loop was closed: no consumer is left
                loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        with self._lock:
            events, self._pending = self._pending, deque()
        for event in events:
            event.set()


class Handle:
    """A submitted job. Events have one consumer: either `events` or `aevents`."""

    def __init__(self, job: Job, wake_engine: Callable[[], None]) -> None:
        self.job = job
        self._wake_engine = wake_engine
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._listener: Callable[[], None] | None = None
        self._result: Result | None = None
        self._error: MnemoError | None = None
        self._cancelled = False

    def events(self) -> Iterator[Event]:
        """Every event, as soon as it happens. Raises the job's error after the last one, if it failed."""
        while True:
            with self._changed:
                while not self._events and not self._ended:
                    self._changed.wait()
                ready = self._take()
            yield from ready
            if not ready:
                return

    async def aevents(self) -> AsyncGenerator[Event, None]:
        """As `events`, for an event loop."""
        changed, waker = asyncio.Event(), LoopWaker.of(asyncio.get_running_loop())
        with self._changed:
            self._listener = lambda: waker.wake(changed)
        try:
            while True:
                changed.clear()
                with self._changed:
                    ended, ready = self._ended, self._take()
                for event in ready:
                    yield event
                if ended and not ready:
                    return
                if not ready:
                    await changed.wait()
        finally:
            self._listener = None

    def _take(self) -> list[Event]:
        """All events that wait to be consumed; raises the job's error if there are none and it failed."""
        ready = list(self._events)
        self._events.clear()
        if not ready and self._error is not None:
            raise self._error
        return ready

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end of the job. Raises its error if it failed, and TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, timeout):
                raise TimeoutError("the job is not finished")
            if self._error is not None:
                raise self._error
            assert self._result is not None
            return self._result

    def cancel(self) -> None:
        """Stop computing after the current step; the result is then the state after the tokens of the events."""
        self._cancelled = True
        self._wake_engine()

    @property
    def done(self) -> bool:
        """Whether the job is finished, has failed or was cancelled and has stopped."""
        return self._ended

    @property
    def _ended(self) -> bool:
        return self._result is not None or self._error is not None

    # For engines:

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def emit(self, event: Event) -> None:
        """Hand out an event."""
        with self._changed:
            self._events.append(event)
            self._notify()

    def finish(self, result: Result) -> None:
        """End the job with a result."""
        with self._changed:
            self._result = result
            self._notify()

    def fail(self, error: MnemoError) -> None:
        """End the job with an error."""
        with self._changed:
            self._error = error
            self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._listener is not None:
            self._listener()
