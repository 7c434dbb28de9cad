"""Processes that tests start heed a hang-up, however the tests were started: under `nohup`, they would ignore it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def default_hang_up() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
