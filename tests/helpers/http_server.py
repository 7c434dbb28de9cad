"""A real server on a free port of this machine, in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from helpers.serial_engine import SerialEngine
from starlette.routing import BaseRoute

from mnemo.serving.app import create_app
from mnemo.serving.listening import AppServer
from mnemo.serving.served_model import ServedModel, served_run
from mnemo.serving.settings import Settings
from mnemo.session.text_run import OpenedRun

SECONDS = 30


class RunningServer:
    """`url`: without a path, such as http://127.0.0.1:4321."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self.app = app
        self.socket = socket.create_server((settings.host, 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://{settings.host}:{self.port}"
        self.uvicorn = AppServer(app, settings, lambda: None)
        self.thread = threading.Thread(target=self.uvicorn.run, args=([self.socket],), daemon=True)

    def start(self) -> None:
        self.thread.start()
        wait_for(lambda: self.uvicorn.started)

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(SECONDS)
        self.socket.close()
        assert not self.thread.is_alive()


def wait_for(condition: Any, seconds: float = SECONDS) -> None:
    """Wait until a condition holds; an error if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)


@contextmanager
def running(
    models: Sequence[ServedModel], store: Any = None, settings: Settings | None = None, routes: Sequence[BaseRoute] = ()
) -> Iterator[RunningServer]:
    settings = replace(settings or Settings(), port=0)
    server = RunningServer(create_app(models, store, settings, routes), settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def serial(opened: OpenedRun, name: str = "tiny") -> ServedModel:
    """A run that is served by the reference engine."""
    return served_run(name, opened, SerialEngine(opened.run.model, opened.run.recipe.train.segment))
