"""Answers to requests that compute: whole JSON, or a stream of events, until the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mnemo.errors import MnemoError
from mnemo.serving.errors import ApiError, as_api_error, json_text, timed_out

T = TypeVar("T")
log = logging.getLogger("mnemo.serving")
EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Disconnected(Exception):
    """The client has closed the connection."""


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """Wait for the work; if the client disconnects first, cancel it, wait for its end and raise `Disconnected`."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Wait for the work; after the time limit, cancel it and raise an error for the client."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise timed_out(seconds) from None


class NoAnswer(Response):
    """For a client that is gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


async def whole_answer(
    request: Request, seconds: float, work: Awaitable[Response], on_disconnect: Callable[[], None]
) -> Response:
    """A single answer, unless the client disconnects before it is complete."""
    try:
        return await unless_disconnected(request.receive, within(seconds, work))
    except Disconnected:
        on_disconnect()
        return NoAnswer()


class EventStream(Response):
    """Server-sent events. An error before the first event is an ordinary answer; a later one is the last event.

    `events` are JSON contents; the stream ends with `[DONE]`, as clients of OpenAI's API expect.
    """

    def __init__(
        self, events: AsyncIterator[dict[str, Any]], seconds: float, on_disconnect: Callable[[], None]
    ) -> None:
        super().__init__()
        self.events, self.seconds, self.on_disconnect = events, seconds, on_disconnect
        self.started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, within(self.seconds, self._send_all(send)))
        except Disconnected:
            self.on_disconnect()
        except Exception as error:
            if not self.started:
                raise
            if not isinstance(error, ApiError | MnemoError):
                log.exception("a stream failed")
            await self._send(send, json_text(as_api_error(error).content()), last=True)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self.events) as events:  # type: ignore[arg-type]
            async for event in events:
                await self._send(send, json_text(event))
        await self._send(send, "[DONE]", last=True)

    async def _send(self, send: Send, data: str, last: bool = False) -> None:
        if not self.started:
            await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_STREAM)})
            self.started = True
        body = f"data: {data}\n\n".encode("ascii")
        await send({"type": "http.response.body", "body": body, "more_body": not last})
