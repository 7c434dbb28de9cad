"""A row measured in a process of its own, which prepares at once and measures when it is asked to.

Messages are JSON: the process sends {"ready"}, waits, and sends {"found"} and {"profile"}, or {"failed"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from mnemo.bench.gpu_table.rows import Row
from mnemo.errors import MnemoError

READY_SECONDS, MEASURE_SECONDS = 420, 600
"""Longest times to prepare and to measure, after which the row counts as failed."""


class RowFailed(MnemoError):
    pass


class RowProcess:
    """Starts to prepare when it is created. `threads`: compiler processes."""

    def __init__(self, row: Row, device: str, *, miniature: bool, profile: bool, threads: int) -> None:
        self.row, self._begin = row, time.monotonic()
        context = get_context("spawn")
        self._channel, other = context.Pipe()
        arguments = (other, row.name, device, miniature, profile, threads)
        self._process = context.Process(target=serve_row, args=arguments)
        self._process.start()
        other.close()

    def wait_until_ready(self) -> float:
        """Return the seconds that preparation took."""
        left = READY_SECONDS - (time.monotonic() - self._begin)
        return self._receive("ready", max(1.0, left))

    def start_measuring(self) -> None:
        self._channel.send_bytes(b"measure")

    def found(self) -> dict[str, Any]:
        return self._receive("found", MEASURE_SECONDS)

    def profile(self) -> dict[str, Any]:
        return self._receive("profile", MEASURE_SECONDS)

    def close(self) -> None:
        """End the process at once: its results have arrived, and an orderly exit takes seconds."""
        self._process.terminate()
        self._process.join()
        self._channel.close()

    def _receive(self, key: str, seconds: float) -> Any:
        if not self._channel.poll(seconds):
            raise RowFailed(f"not {key} after {seconds:.0f} seconds")
        try:
            message = json.loads(self._channel.recv_bytes())
        except EOFError:
            self._process.join(timeout=5)
            raise RowFailed(f"its process ended with exit code {self._process.exitcode}") from None
        if "failed" in message:
            raise RowFailed(message["failed"])
        return message[key]


def serve_row(channel: Connection, name: str, device: str, miniature: bool, profile: bool, threads: int) -> None:
    """The process of a row."""
    sys.stdout = sys.stderr  # the parent prints tables and JSON there
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    try:
        begin = time.monotonic()
        import torch

        from mnemo.bench.gpu_table.work import work_of

        work = work_of(name, torch.device(device), miniature)
        work.prepare()
        _send(channel, "ready", time.monotonic() - begin)
        channel.recv_bytes()
        found = work.measure()
        _send(channel, "found", {"values": found.values, "details": found.details})
        if profile:
            _send(channel, "profile", work.profile())
    except EOFError:
        return  # the parent process has ended
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        _send(channel, "failed", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def _send(channel: Connection, key: str, value: Any) -> None:
    channel.send_bytes(json.dumps({key: value}).encode())
