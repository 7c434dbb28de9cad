"""Time and speed of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds since the run began, over all interruptions, and tokens per second without pauses."""

    def __init__(self, seconds: float, step: int) -> None:
        """`seconds` and `step`: the time and updates of the run so far."""
        now = time.monotonic()
        self._zero, self._first_step, self._start = now - seconds, step, now
        self._mark, self._tokens = now, 0

    def total(self) -> float:
        return time.monotonic() - self._zero

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time inside this context out of the speed."""
        begin = time.monotonic()
        yield
        self._mark += time.monotonic() - begin

    def count(self, tokens: int) -> None:
        self._tokens += tokens

    def lap(self) -> float:
        """Tokens per second since the last lap."""
        now = time.monotonic()
        rate = self._tokens / max(1e-9, now - self._mark)
        self._mark, self._tokens = now, 0
        return rate

    def left(self, step: int, steps: int) -> float:
        """Estimated seconds until the last step."""
        done = max(1, step - self._first_step)
        return (time.monotonic() - self._start) / done * (steps - step)
