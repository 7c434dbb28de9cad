"""The demo's byte model in a process of its own: a second core trains it while the first one trains the other models.

Every model is trained in one thread, so results are those of training one model after the other.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mnemo.cli.demo_time import Fitted, Throttled, fit_steps
from mnemo.cli.demo_training import BYTE_MODEL, BYTES, DemoSize
from mnemo.errors import MnemoError, one_line
from mnemo.training import Monitor, Status, Unwatched
from mnemo.training.single_thread import single_threaded

SECONDS_TO_STOP = 10.0

Message = tuple[str, tuple[Any, ...]]
"""The name of an event, and its values"""


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BackgroundTraining:
    """Starts training the byte model in `out`; without `seconds`, all steps of `size`, else as many as fit."""

    def __init__(self, out: Path, size: DemoSize, seconds: float | None) -> None:
        context = get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_train, args=(sender, out / BYTES, size, seconds), daemon=True)
        self._process.start()
        sender.close()
        self._messages: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        """Take messages out of the pipe, so that the process never waits; None at its end."""
        try:
            while True:
                self._messages.put(self._receiver.recv())
        except (EOFError, OSError):
            self._messages.put(None)

    def finish(self, monitor: Monitor) -> Iterator[Fitted]:
        """Show the training until it ends; yields the number of steps once it is known."""
        while (message := self._messages.get()) is not None:
            name, values = message
            if name == "fitted":
                yield values[0]
            elif name == "failed":
                raise MnemoError(f"the byte model: {values[0]}")
            elif name == "ended":
                if values[0] is not None:
                    raise KeyboardInterrupt
                return
            else:
                getattr(monitor, name)(*values)
        raise MnemoError("the process that trains the byte model has ended without a result")

    def stop(self) -> None:
        """End the process, if it still runs."""
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(SECONDS_TO_STOP)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Sending(Unwatched):
    """A monitor that sends everything except progress bars to another process."""

    def __init__(self, sender: Connection) -> None:
        self._sender = sender

    def started(self, unit: str) -> None:
        self._sender.send(("started", (unit,)))

    def note(self, line: str) -> None:
        self._sender.send(("note", (line,)))

    def trained(self, status: Status) -> None:
        self._sender.send(("trained", (status,)))

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self._sender.send(("evaluated", (step, loss, is_best)))


def _train(sender: Connection, folder: Path, size: DemoSize, seconds: float | None) -> None:
    """Train the byte model in this process."""
    try:
        with single_threaded():
            if seconds is not None:
                fitted = fit_steps(BYTE_MODEL, size, seconds)
                sender.send(("fitted", (fitted,)))
                size = BYTE_MODEL.with_steps(size, fitted.steps)
            recipe = BYTE_MODEL.recipes[BYTES](size)
            outcome = BYTE_MODEL.train(folder, recipe, Throttled(_Sending(sender)))
        sender.send(("ended", (outcome.signal,)))
    except KeyboardInterrupt:
        sender.send(("ended", (2,)))
    except Exception as error:
        sender.send(("failed", (one_line(error),)))
        raise
