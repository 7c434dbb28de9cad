"""Listening on a port until a signal arrives, then a graceful shutdown."""

from __future__ import annotations

import asyncio
import errno
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from mnemo.errors import MnemoError
from mnemo.serving.settings import Settings

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(settings: Settings) -> socket.socket:
    """A socket that listens on the address; an error of one line if that is impossible."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        where = f"{settings.host} port {settings.port}"
        if error.errno == errno.EADDRINUSE:
            raise MnemoError(f"{where} is in use by another program: choose another with --port") from None
        raise MnemoError(f"cannot listen on {where}: {error.strerror or error}") from None


def run_until_stopped(
    app: Starlette, listener: socket.socket, settings: Settings, on_start: Callable[[], None]
) -> None:
    """Answer requests until SIGINT or SIGTERM.

    Then no further connection is accepted, running answers have `shutdown_seconds` to finish, and the application
    closes the store and the engines. A second SIGINT stops waiting.
    """
    with _quiet_signals():
        AppServer(app, settings, on_start).run([listener])


class AppServer(uvicorn.Server):
    """Runs the application. `on_start`: called as soon as the server answers requests."""

    def __init__(self, app: Starlette, settings: Settings, on_start: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            http=_protocol(settings.upload_seconds),
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=math.ceil(settings.shutdown_seconds),
        )
        super().__init__(config)
        self._app, self._on_start = app, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Streams without an end, such as the studio's curves, end when they see this.
        self._app.state.server.stopping = True
        await super().shutdown(sockets)


class PromptConnection(H11Protocol):
    """Sends at once, and closes a connection whose client does not send the headers of a request in time.

    uvicorn waits for ever. asyncio lets the system send at once only if the listening socket names its protocol, which
    those of `socket.create_server` do not: a body would wait until the client has acknowledged the headers, 40 ms.
    """

    seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        """Start the timer if headers are awaited, and stop it if they are complete."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _protocol(seconds: float) -> type[PromptConnection]:
    return type("PromptConnection", (PromptConnection,), {"seconds": seconds})


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """Ignore signals that uvicorn sends again after its shutdown: the program then ends as usual."""
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
