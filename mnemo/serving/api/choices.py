"""Running a completion request, and its answer as one JSON object or as a stream."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from mnemo.serving.api.answers import EventStream, whole_answer
from mnemo.serving.continuation import Continuation, Piece, Usage, Wanted
from mnemo.serving.errors import JsonResponse
from mnemo.serving.server import Server

RANDOM_SEEDS = 2**31


class ChoiceForm(ABC):
    """The form of an answer: text completion or chat completion."""

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.created = wanted, int(time.time())
        self.id = self.prefix + secrets.token_hex(12)

    @abstractmethod
    def choice(self, index: int, pieces: list[Piece], finish: str | None) -> dict[str, Any]:
        """A whole choice."""

    @abstractmethod
    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        """A piece of a choice in a stream."""

    def opening(self) -> list[dict[str, Any]]:
        """Choices of the first events of a stream, before any text."""
        return []

    def whole(self, pieces: list[Piece], usage: Usage) -> dict[str, Any]:
        by_choice: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_choice.setdefault(piece.index, []).append(piece)
        choices = [self.choice(index, by_choice[index], by_choice[index][-1].finish) for index in sorted(by_choice)]
        return self._content(self.kind, choices) | {"usage": usage.to_json()}

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        content = self._content(self.chunk_kind, choices)
        if self.wanted.include_usage:
            content["usage"] = None if usage is None else usage.to_json()
        return content

    def _content(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.wanted.model.name}
        return about | ({} if self.wanted.session is None else {"session": self.wanted.session}) | {"choices": choices}


async def answer(request: Request, server: Server, wanted: Wanted, form: ChoiceForm) -> Response:
    """Compute the continuations of a request and answer it."""
    gone = server.metrics.cancelled.inc
    if wanted.stream:
        return EventStream(_chunks(server, wanted, form), server.settings.request_seconds, gone)
    return await whole_answer(request, server.settings.request_seconds, _whole(server, wanted, form), gone)


async def _whole(server: Server, wanted: Wanted, form: ChoiceForm) -> Response:
    async with _running(server, wanted) as continuation:
        async with aclosing(_timed(server, continuation)) as pieces:
            found = [piece async for piece in pieces]
    return JsonResponse(form.whole(found, continuation.usage))


async def _chunks(server: Server, wanted: Wanted, form: ChoiceForm) -> AsyncGenerator[dict[str, Any], None]:
    async with _running(server, wanted) as continuation:
        async with aclosing(_timed(server, continuation)) as pieces:
            first = True
            async for piece in pieces:
                if first:
                    for choice in form.opening():
                        yield form.chunk([choice])
                    first = False
                yield form.chunk([form.chunk_choice(piece)])
    if wanted.include_usage:
        yield form.chunk([], continuation.usage)


@asynccontextmanager
async def _running(server: Server, wanted: Wanted) -> AsyncIterator[Continuation]:
    """The continuation of a request that was admitted, in its session if it has one."""
    with server.admitted():
        if wanted.session is None:
            seed = secrets.randbelow(RANDOM_SEEDS) if wanted.seed is None else wanted.seed
            yield Continuation(wanted, seed)
            return
        async with server.store.turn(wanted.session, wanted.model.name, wanted.fork) as turn:
            yield Continuation(wanted, turn.seed if wanted.seed is None else wanted.seed, turn)


async def _timed(server: Server, continuation: Continuation) -> AsyncGenerator[Piece, None]:
    """All pieces; the time to the first one is measured."""
    begin, first = time.monotonic(), True
    async with aclosing(continuation.events()) as pieces:
        async for piece in pieces:
            if first:
                server.metrics.first_token.labels(continuation.model.name).observe(time.monotonic() - begin)
                first = False
            yield piece
