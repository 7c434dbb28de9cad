"""A server with sessions in a separate process, which can be killed, and can kill itself at a file operation."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from helpers import ranks
from helpers.countdown import kill_at
from helpers.http_server import RunningServer
from helpers.sessions import random_run

from mnemo.files import tensor_file
from mnemo.serving import session_folder, session_work
from mnemo.serving.app import create_app
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.served_model import served_run
from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore
from mnemo.session.text_run import OpenedRun

LOGGED_TOKENS, SNAPSHOT_TOKENS, MEMORY_BYTES = 40, 60, 60_000
"""Small, so that snapshots, texts that are not logged, and sessions that go to disk are frequent."""
FILE_OPERATIONS = ("fsync", "ftruncate", "link")
PATH_OPERATIONS = ("rename", "replace", "unlink")


def small_run() -> OpenedRun:
    """In single precision: most ways to compute the same thing differently change bits."""
    return random_run(dtype=torch.float32)


def start(folder: Path, operation: int = 0, armed: bool = False) -> tuple[BaseProcess, str]:
    """Start a server; return its process and its address, which is empty if it was killed before it had one.

    `operation`: the file operation at which it is killed, from its start on if it is `armed`, else from SIGUSR1 on.
    """
    if "helpers.session_process" not in ranks.PRELOAD:
        ranks.PRELOAD.append("helpers.session_process")
    receiver, sender = ranks.parent().Pipe(duplex=False)
    process = ranks.parent().Process(target=serve, args=(folder, sender, operation, armed))
    process.start()
    sender.close()
    try:
        return process, receiver.recv()
    except EOFError:
        return process, ""
    finally:
        receiver.close()


def serve(folder: Path, ready: Connection, operation: int, armed: bool) -> None:
    session_work.LOGGED_TOKENS, session_folder.SNAPSHOT_TOKENS = LOGGED_TOKENS, SNAPSHOT_TOKENS
    torch.set_num_threads(1)
    signal.signal(signal.SIGUSR1, lambda *_: die_at(operation))
    if armed:
        die_at(operation)
    opened = small_run()
    model = served_run("tiny", opened, BatchedEngine(opened.run.model, opened.run.recipe.train.segment))
    store = SessionStore(folder, [model.sessions], memory_bytes=MEMORY_BYTES)
    settings = Settings(port=0)
    server = RunningServer(create_app([model], store, settings), settings)
    server.start()
    ready.send(server.url)
    ready.close()
    while True:
        signal.pause()


def die_at(operation: int) -> None:
    """Kill this process at its file operation of this number; a write is done by half before."""
    mortal = kill_at(operation)
    write = os.pwrite
    for name in FILE_OPERATIONS:
        setattr(os, name, mortal(getattr(os, name)))
    os.pwrite = mortal(write, lambda handle, data, place: write(handle, data[: len(data) // 2], place))
    for name in PATH_OPERATIONS:
        setattr(Path, name, mortal(getattr(Path, name)))
    tensor_file.save_file = mortal(tensor_file.save_file, _save_half)


def _save_half(tensors: Any, path: Path, metadata: Any) -> None:
    path.write_bytes(safetensors.torch.save(tensors, metadata)[:500])
