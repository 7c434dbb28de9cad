"""`/v1/sessions`: texts in progress whose memory the server keeps.

POST   /v1/sessions                make one: empty, or from a memory file
GET    /v1/sessions                list them, the one used last first
GET    /v1/sessions/ID             tokens read, size of the state, use of the memory
PATCH  /v1/sessions/ID             change name, seed, memory length, or turn memory off and on
DELETE /v1/sessions/ID
POST   /v1/sessions/ID/read        read a text of any length, with progress events
POST   /v1/sessions/ID/fork        copy
GET    /v1/sessions/ID/memory      save: a memory file
PUT    /v1/sessions/ID/memory      load: continue from a memory file
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from torch import Tensor

from mnemo.data.encoded_pieces import EncodedPiece, encoded_pieces, text_encoded_by
from mnemo.data.tokenizers import as_bytes
from mnemo.files.safe_load import MAX_DIGITS
from mnemo.serving.api.answers import EventStream, whole_answer
from mnemo.serving.api.fields import JSON_TYPE, Fields, json_body, media_type
from mnemo.serving.draws import LARGEST_SEED
from mnemo.serving.engine import Progress, ReadJob
from mnemo.serving.errors import ApiError, JsonResponse, invalid
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import Server, server_of
from mnemo.serving.session_data import Facts
from mnemo.serving.session_errors import SessionNotFound
from mnemo.serving.store import LONGEST_NAME, SessionStore, Turn, checked_name
from mnemo.serving.uploads import require_text, uploaded, written

EVENT_STREAM = "text/event-stream"
EVENT_SECONDS = 0.1
"""Shortest time between two progress events."""
LARGEST_LENGTH = 1 << 24
FIELDS = ("name", "seed", "memory_length", "memory")
TEXT_FIELDS = ("model", "name", "encoding")
"""Fields of an address that stay text even if they consist of digits."""
MOST_AHEAD = 1 << 20
"""Tokens that the model may be ahead of the progress events that the client has received."""


def session_routes() -> list[Route]:
    one = "/v1/sessions/{session}"
    return [
        Route("/v1/sessions", _create, methods=["POST"]),
        Route("/v1/sessions", _list, methods=["GET"]),
        Route(one, _show, methods=["GET"]),
        Route(one, _change, methods=["PATCH"]),
        Route(one, _delete, methods=["DELETE"]),
        Route(f"{one}/read", _read, methods=["POST"]),
        Route(f"{one}/fork", _fork, methods=["POST"]),
        Route(f"{one}/memory", _save, methods=["GET"]),
        Route(f"{one}/memory", _load, methods=["PUT"]),
    ]


async def _create(request: Request) -> Response:
    server, store = _server(request)
    if _is_json(request):
        fields = await json_body(request, server.settings)
        fields.only(("model", *FIELDS))
        session = await asyncio.to_thread(_created, store, _model_name(fields, server), fields, None)
    else:
        fields = _query(request, ("model", "name", "seed"))
        async with _memory_file(request, server, store) as path:
            session = await asyncio.to_thread(_created, store, _model_name(fields, server), fields, path)
    return JsonResponse(await asyncio.to_thread(session_json, store, session), 201)


def _created(store: SessionStore, model: str, fields: Fields, file: Path | None) -> str:
    return store.create(
        model,
        name=fields.text("name", "", longest=LONGEST_NAME),
        seed=_seed(fields),
        memory_length=_length(fields),
        memory_on=fields.flag("memory", True),
        memory_file=file,
    )


async def _list(request: Request) -> Response:
    _, store = _server(request)
    return JsonResponse({"object": "list", "data": await asyncio.to_thread(_all_json, store)})


def _all_json(store: SessionStore) -> list[dict[str, Any]]:
    found = []
    for session in store.ids():
        with suppress(SessionNotFound):  # it was deleted in the meantime
            found.append(_outline_json(store, session))
    return found


def _outline_json(store: SessionStore, session: str) -> dict[str, Any]:
    """A session as far as it is known without loading it."""
    status = {
        "busy": store.is_busy(session),
        "in_memory": store.is_in_memory(session),
        "problem": store.problem(session),
    }
    return facts_json(session, store.facts(session)) | status


async def _show(request: Request) -> Response:
    _, store = _server(request)
    return JsonResponse(await asyncio.to_thread(session_json, store, _id(request)))


async def _change(request: Request) -> Response:
    server, store = _server(request)
    fields = await json_body(request, server.settings)
    fields.only(FIELDS)
    async with store.turn(_id(request)) as turn:
        await asyncio.to_thread(_changed, turn, fields)
    return JsonResponse(await asyncio.to_thread(session_json, store, _id(request)))


def _changed(turn: Turn, fields: Fields) -> None:
    facts = turn.session.facts
    if {"memory_length", "memory"} & fields.content.keys():
        kept = facts.lengths if "memory_length" not in fields.content else _length(fields)
        turn.change_memory(kept, fields.flag("memory", facts.memory_on))
    if fields.has("name") or fields.has("seed"):
        name = fields.text("name", facts.name, longest=LONGEST_NAME)
        turn.describe(checked_name(name), facts.created, _seed(fields))
    turn.commit()


async def _delete(request: Request) -> Response:
    _, store = _server(request)
    await asyncio.to_thread(store.delete, _id(request))
    return JsonResponse({"id": _id(request), "object": "session.deleted", "deleted": True})


async def _fork(request: Request) -> Response:
    server, store = _server(request)
    fields = await json_body(request, server.settings) if _is_json(request) else _query(request, ("name", "seed"))
    fields.only(("name", "seed"))
    name = fields.text("name", None, longest=LONGEST_NAME)
    forked = await asyncio.to_thread(store.fork, _id(request), name=name, seed=_seed(fields))
    return JsonResponse(await asyncio.to_thread(session_json, store, forked), 201)


async def _save(request: Request) -> Response:
    _, store = _server(request)
    path = store.uploads / secrets.token_hex(8)
    await asyncio.to_thread(store.save_memory, _id(request), path)
    return FileResponse(
        path,
        media_type="application/octet-stream",
        filename=f"{_id(request)}.memory",
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


async def _load(request: Request) -> Response:
    server, store = _server(request)
    async with store.turn(_id(request)) as turn, _memory_file(request, server, store) as path:
        await asyncio.to_thread(_loaded, turn, path)
    return JsonResponse(await asyncio.to_thread(session_json, store, _id(request)))


def _loaded(turn: Turn, path: Path) -> None:
    turn.load(path)
    turn.commit()


async def _read(request: Request) -> Response:
    server, store = _server(request)
    options = _query(request, ("stream", "encoding", "binary", "losses"))
    streamed = options.flag("stream") or EVENT_STREAM in request.headers.get("accept", "")
    if options.flag("losses") and not streamed:
        raise invalid("'losses' needs 'stream=true': the losses are in the progress events", "losses")
    async with AsyncExitStack() as stack:
        stack.enter_context(server.admitted())
        turn = await stack.enter_async_context(store.turn(_id(request)))
        path = await stack.enter_async_context(_text_file(request, server, store, options))
        if not options.flag("binary"):
            await asyncio.to_thread(require_text, path)
        text = FileText(path, server.model(turn.session.facts.model))
        events = _reading(turn, text, options.flag("losses"))
        if streamed:
            # The answer is sent after this function has returned: the session stays locked until then.
            return Holding(EventStream(events, math.inf, server.metrics.cancelled.inc), stack.pop_all())
        return await whole_answer(request, math.inf, _last(events), server.metrics.cancelled.inc)


async def _reading(turn: Turn, text: FileText, keep_losses: bool) -> AsyncIterator[dict[str, Any]]:
    """Progress, then the session after the text, which is logged by then."""
    noted = turn.noted(text)
    handle = turn.engine.submit(ReadJob(state=turn.state, ids=noted, keep_losses=keep_losses))
    sent = 0.0
    try:
        async with aclosing(handle.aevents()) as events:
            async for event in events:
                assert isinstance(event, Progress)
                text.received(event.tokens)
                if keep_losses or time.monotonic() - sent >= EVENT_SECONDS:
                    sent = time.monotonic()
                    yield _progress_json(event, text, keep_losses)
    finally:
        handle.cancel()  # if the client is gone; a job that is done stays as it is
        text.close()
    result = handle.result()
    turn.take_read(noted, result.state)
    await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(turn.commit)))
    loss = result.nats / result.predicted if result.predicted else None
    read = {"tokens": result.tokens, "bytes": text.size, "loss": loss}
    yield {"object": "session.read", "read": read, "session": await asyncio.to_thread(_json, turn)}


def _progress_json(progress: Progress, text: FileText, keep_losses: bool) -> dict[str, Any]:
    return {
        "object": "session.progress",
        "tokens": progress.tokens,
        "bytes": text.bytes_of(progress.tokens),
        "total_bytes": text.size,
        "nats": progress.nats,
    } | ({"losses": list(progress.losses)} if keep_losses else {})


async def _last(events: AsyncIterator[dict[str, Any]]) -> Response:
    last: dict[str, Any] = {}
    async with aclosing(events) as all_events:  # type: ignore[type-var]
        async for event in all_events:
            last = event
    return JsonResponse(last)


class FileText:
    """The token ids of a text file, and how far into the file each number of tokens reaches.

    A client that receives its events slowly, or not at all, slows down the reading. Otherwise the events that wait for
    it would need memory without a limit.
    """

    def __init__(self, path: Path, model: ServedModel) -> None:
        self.size = path.stat().st_size
        self._pieces = encoded_file(path, model)
        self._places: deque[tuple[int, int]] = deque()
        """Tokens and bytes up to the end of pieces that are not read yet."""
        self._done = 0
        self._received, self._closed = 0, False
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[Tensor]:
        """Called in a thread of the engine."""
        tokens = 0
        for piece in self._pieces:
            if not self._is_wanted(tokens):
                return
            tokens += len(piece.ids)
            self._places.append((tokens, piece.num_bytes))
            yield torch.from_numpy(piece.ids)

    def _is_wanted(self, tokens: int) -> bool:
        """Wait until the client has received most of the events of these tokens; False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or tokens < self._received + MOST_AHEAD)
            return not self._closed

    def received(self, tokens: int) -> None:
        """Note that the client takes events up to this number of tokens."""
        with self._changed:
            self._received = tokens
            self._changed.notify()

    def close(self) -> None:
        """Hand out no further pieces."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def bytes_of(self, tokens: int) -> int:
        """Bytes of the file that were read, up to the end of a piece; `tokens` never gets smaller."""
        while self._places and self._places[0][0] <= tokens:
            self._done = self._places.popleft()[1]
        return self._done


def encoded_file(path: Path, model: ServedModel) -> Iterator[EncodedPiece]:
    if model.run is None:
        return text_encoded_by(path, lambda text: model.encode(text, "the text"))
    return encoded_pieces(path, model.run.tokenizer)


class Holding(Response):
    """An answer that holds resources until it is sent, or given up."""

    def __init__(self, answer: Response, held: AsyncExitStack) -> None:
        self.answer, self.held = answer, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.held:
            await self.answer(scope, receive, send)


def session_json(store: SessionStore, session: str) -> dict[str, Any]:
    """Everything about a session; it is loaded if it is on disk only."""
    return _json(store.look(session)) | {"busy": store.is_busy(session)}


def _json(turn: Turn) -> dict[str, Any]:
    facts, state = turn.session
    use = turn.model.memory_use(state, facts.memory_on)
    memory = {
        "on": use.on,
        "length": facts.lengths,
        "segment": use.segment,
        "open": use.open,
        "memory_tokens": use.memory_tokens,
        "layers": [layer._asdict() for layer in use.layers],
    }
    return facts_json(turn.id, facts) | {"state_bytes": use.nbytes, "memory": memory}


def facts_json(session: str, facts: Facts) -> dict[str, Any]:
    return {
        "id": session,
        "object": "session",
        "model": facts.model,
        "name": facts.name,
        "created": int(facts.created),
        "changed": int(facts.changed),
        "tokens": facts.tokens,
        "requests": facts.records,
        "seed": facts.seed,
        "draws": facts.draws,
    }


def _server(request: Request) -> tuple[Server, SessionStore]:
    server = server_of(request)
    if server.store is None:
        raise ApiError(404, "this server keeps no sessions", code="no_sessions")
    return server, server.store


def _id(request: Request) -> str:
    return request.path_params["session"]


def _is_json(request: Request) -> bool:
    return media_type(request) == JSON_TYPE


def _query(request: Request, known: tuple[str, ...]) -> Fields:
    """Fields of the address, as if they were in a JSON body."""
    given = request.query_params.items()
    fields = Fields({name: value if name in TEXT_FIELDS else _query_value(value) for name, value in given})
    fields.only(known)
    return fields


def _query_value(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdecimal() and len(value) < MAX_DIGITS else value


def _model_name(fields: Fields, server: Server) -> str:
    name = fields.text("model", None)
    if name is None and len(server.models) > 1:
        raise invalid("'model' is missing, and several are served", "model")
    return next(iter(server.models)) if name is None else server.model(name).name


def _seed(fields: Fields) -> int | None:
    return fields.count("seed", None, 0, LARGEST_SEED - 1)


def _length(fields: Fields) -> int | None:
    return fields.count("memory_length", None, 0, LARGEST_LENGTH)


def _memory_file(request: Request, server: Server, store: SessionStore) -> AbstractAsyncContextManager[Path]:
    """The body as a file; a memory that does not fit the memory of all sessions is of no use."""
    limit = min(server.settings.max_upload_bytes, store.memory_bytes)
    return uploaded(request, store.uploads, limit=limit, seconds=server.settings.upload_seconds)


@asynccontextmanager
async def _text_file(request: Request, server: Server, store: SessionStore, options: Fields) -> AsyncIterator[Path]:
    """The body as a UTF-8 file: a text itself, or the field `text` of a JSON object."""
    if _is_json(request):
        fields = await json_body(request, server.settings)
        fields.only(("text",))
        data = as_bytes(fields.text("text", ""))
        async with written(data, store.uploads) as path:
            yield path
        return
    encoding = options.text("encoding", None) or _charset(request)
    settings = server.settings
    async with uploaded(
        request,
        store.uploads,
        limit=settings.max_upload_bytes,
        seconds=settings.upload_seconds,
        encoding=encoding,
    ) as path:
        yield path


def _charset(request: Request) -> str:
    """The encoding in the header Content-Type; UTF-8 if it has none."""
    for parameter in request.headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"')
    return "utf-8"
