"""Locks between processes, which the operating system drops when a process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None


def takes_lock(file: TextIO, shared: bool = False) -> bool:
    """Lock a file without waiting; False if another process holds the lock. A file system without locks has none."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the second on some network file systems
        return False
    except OSError:
        return True
    return True


@contextmanager
def taking_turns(folder: Path) -> Iterator[None]:
    """Wait until no other process is inside such a block for the same folder. No file is written."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
