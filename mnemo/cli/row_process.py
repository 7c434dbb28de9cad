"""A row of `mnemo bench --alternatives` in a new process: GPU and compiler are then as fresh as for the first row."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from typing import TYPE_CHECKING

from mnemo.errors import MnemoError

if TYPE_CHECKING:
    from mnemo.bench.alternatives.measure import Conditions
    from mnemo.training.stop_signals import Stop

POLL_SECONDS = 0.2
FAILED, IN_USE = 2, 3
"""Exit codes; after a signal, 128 + its number."""


def measure_here(name: str, conditions: Conditions) -> None:
    """Measure a row in this process."""
    from mnemo.bench.alternatives.measure import measure_row
    from mnemo.bench.alternatives.rows import ROWS
    from mnemo.cli.watching import watching

    with watching() as watcher:
        measure_row(ROWS[name], conditions, watcher)


def measure_apart(name: str, conditions: Conditions, stop: Stop) -> int:
    """Measure a row in a process that ends with this one; return its exit code. `stop`: what has come for this one."""
    from mnemo.training.parent import NOTICE

    process = get_context("spawn").Process(target=serve, args=(name, conditions, os.getpid()))
    process.start()
    assert process.pid is not None
    asked = False
    while process.is_alive():
        process.join(POLL_SECONDS)
        if stop.insisted:
            process.kill()
        elif stop.signal is not None and not asked and process.is_alive():
            asked = True
            # If a terminal has sent it the signal, too, a notice does not count as a second one, which would end it.
            os.kill(process.pid, NOTICE)
    code = process.exitcode or 0
    return code if code >= 0 else 128 - code


def serve(name: str, conditions: Conditions, parent: int) -> None:
    """In the new process: exit with a code."""
    from mnemo.bench.alternatives.measure import RowStopped
    from mnemo.storage.run_folder import InUse
    from mnemo.training.parent import end_with

    end_with(parent)
    sys.stdout = sys.stderr  # the parent prints the table and JSON there
    try:
        measure_here(name, conditions)
    except RowStopped as stopped:
        sys.exit(128 + stopped.signal)
    except KeyboardInterrupt:  # while it did not train
        sys.exit(130)
    except MnemoError as error:
        print(f"row {name}: {error}", file=sys.stderr)
        sys.exit(IN_USE if isinstance(error, InUse) else FAILED)
