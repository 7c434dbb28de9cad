"""Progress lines of the demo, at most one a second."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from mnemo.progress import Advance
from mnemo.training import Monitor, Status

SECONDS_BETWEEN_REPORTS = 1.0


class Throttled:
    """Forward to a monitor, progress lines at most once a second."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor, self._forwarded = monitor, 0.0

    def note(self, line: str) -> None:
        self._monitor.note(line)

    def trained(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._forwarded >= SECONDS_BETWEEN_REPORTS or status.step == status.steps:
            self._forwarded = now
            self._monitor.trained(status)

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self._monitor.evaluated(step, loss, is_best)

    def show(self, label: str, total: float | None = None, *, unit: str = "") -> AbstractContextManager[Advance]:
        return self._monitor.show(label, total, unit=unit)
