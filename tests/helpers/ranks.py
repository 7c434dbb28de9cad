"""Processes of a distributed job that start fast: they are forked from a server that has imported everything."""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any
from unittest import mock

PRELOAD = [
    "helpers.toy_runs",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "helpers.frozen",
]

PATIENCE = 300
"""Seconds before a process that hangs prints its stack and ends."""


@functools.cache
def parent() -> Any:
    """Context whose processes are forked from one server that has imported `PRELOAD`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    # The server ignores sys.path and modules that it cannot import, so it takes the path from the environment.
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return context


def start(size: int, work: Callable[..., Any], *arguments: Any, results: Any = None) -> list[BaseProcess]:
    """Start processes that each call `work(*arguments)` as one rank of a job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"MNEMO_DATA": os.environ["MNEMO_DATA"]}
    processes = [
        parent().Process(target=_rank, args=({**shared, "RANK": rank, "LOCAL_RANK": rank}, results, work, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return processes


def _rank(variables: dict[str, Any], results: Any, work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    warnings.simplefilter("error")  # as in the tests themselves
    os.environ.update({name: str(value) for name, value in variables.items()})
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.stderr)
    try:
        result = work(*arguments)
    except Exception as error:
        if results is None:
            raise
        result = error if type(error).__module__.startswith("mnemo") else RuntimeError(traceback.format_exc())
    if results is not None:
        results.put((variables["RANK"], result))


def _collect(results: Any, processes: Sequence[BaseProcess]) -> dict[int, Any]:
    """Results by rank; a rank that was killed, for example by its time limit, has none."""
    found: dict[int, Any] = {}
    while len(found) < len(processes):
        alive = any(process.is_alive() for process in processes)
        if not results.empty():
            rank, result = results.get()
            found[rank] = result
        elif not alive:
            raise RuntimeError(f"{len(processes) - len(found)} of {len(processes)} ranks ended without a result")
        else:
            time.sleep(0.01)
    return found


def run(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return each rank's result of `work`, or the `MnemoError` that it raised there.

    `work` may form one process group only: a second one on the same port can meet the store of the first.
    """
    results = parent().SimpleQueue()
    processes = start(size, work, *arguments, results=results)
    found = _collect(results, processes)
    for process in processes:
        process.join()
    wrong = [result for result in found.values() if isinstance(result, RuntimeError)]
    if wrong:
        raise wrong[0]
    return [found[rank] for rank in range(size)]
