"""A worker of `mnemo reproduce --jobs N` ends with the process that has started it.

A process that is killed (`kill -9`, no memory left) cannot tell its workers, and they have process groups of their own,
so that nothing else would end them.
"""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT = "MNEMO_PARENT"
"""Variable of workers' environments: the process id of the one that has started them."""
POLL_SECONDS = 1.0


def end_with_parent() -> None:
    """In a worker, start a thread that stops it as SIGTERM does once its parent is gone: training is saved first."""
    if (parent := os.environ.get(PARENT)) is not None:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
