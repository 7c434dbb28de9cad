"""Worker processes save and end when the process that has started them is gone.

A process that is killed (`kill -9`, no memory left) cannot tell its workers, and nothing else would end them.
"""

from __future__ import annotations

import os
import signal
import threading
import time

PARENT = "MNEMO_PARENT"
"""Variable of workers' environments: the process id of the one that has started them."""
POLL_SECONDS = 1.0
NOTICE = getattr(signal, "SIGUSR1", signal.SIGTERM)
"""Saves and ends training. A parent that was killed may have sent SIGTERM before, after which another SIGTERM would
end the worker while it saves; a notice never does."""


def end_with_parent() -> None:
    """In a worker: `end_with` the parent that its environment names, if it names one."""
    if (parent := os.environ.get(PARENT)) is not None:
        end_with(int(parent))


def end_with(parent: int) -> None:
    """Start a thread that stops this process once its parent is gone: training finishes its step and is saved.

    Not on Windows, where a launcher stands between the two, and a process keeps the id of a parent that is gone.
    """
    if os.name != "nt":
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), NOTICE)
