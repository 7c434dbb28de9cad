"""Routes of the playground: sessions with their transcripts, streams of reading and writing, comparisons.

Sessions are made, resized, saved, loaded and deleted by `/v1/sessions`; the routes here add what only the page needs.
A second request on a session that is busy gets 409, and can be repeated.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mnemo.errors import MnemoError
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.api.answers import EventStream
from mnemo.serving.api.fields import Fields, json_body, limited_body, string_item
from mnemo.serving.engine import ReadJob
from mnemo.serving.errors import JsonResponse, invalid, not_found
from mnemo.serving.served_model import ServedModel
from mnemo.serving.server import Server, server_of
from mnemo.serving.store import SessionStore
from mnemo.serving.studio.playground_models import model_json
from mnemo.serving.studio.playground_text import token_texts, uploaded_text
from mnemo.serving.studio.playground_windows import BITS, in_bits, overview_json, window_json
from mnemo.serving.studio.playground_work import (
    MeasureWork,
    Place,
    ReadWork,
    Work,
    WriteWork,
    Writing,
    read_losses,
    unmeasured,
)
from mnemo.serving.studio.token_details import TokenDetails
from mnemo.serving.studio.transcripts import Transcripts

PATH = "/studio/api/playground"
PAGE_TOKENS = 4096
"""Tokens of a window."""
MOST_SHOWN_BYTES = 8 << 20
"""Longest text that is shown; longer ones can be read without being shown."""
MOST_COMPARED = 1 << 16
"""Characters of a text for a comparison."""
LONGEST_WORK = 24 * 3600.0
"""Seconds."""
LARGEST_SEED = 2**53 - 1
"""JavaScript's largest whole number."""
Endpoint = Callable[[Request], Awaitable[Response]]


class Playground:
    """`folder`: of transcripts on disk; None: in memory only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.transcripts = Transcripts(folder)
        self.details = TokenDetails()
        self.interrupted: dict[str, dict[str, Any]] = {}
        """Work whose page was closed in the middle, by session."""

    def routes(self) -> list[BaseRoute]:
        one = f"{PATH}/sessions/{{session}}"
        return [
            _route(PATH, self._start),
            _route(f"{PATH}/compare", self._compare, "POST"),
            _route(one, self._info),
            _route(f"{one}/fork", self._fork, "POST"),
            _route(f"{one}/read", self._read, "POST"),
            _route(f"{one}/write", self._write, "POST"),
            _route(f"{one}/measure", self._measure, "POST"),
            _route(f"{one}/tokens", self._window),
            _route(f"{one}/token", self._token),
            _route(f"{one}/overview", self._overview),
        ]

    async def _start(self, request: Request) -> Response:
        server = server_of(request)
        store = _store(server)
        await asyncio.to_thread(self.transcripts.keep_only, store.ids())
        models = [model_json(model) for model in server.models.values() if model.name in store.models]
        limits = {
            "page": PAGE_TOKENS,
            "shown_bytes": min(MOST_SHOWN_BYTES, server.settings.max_upload_bytes),
            "upload_bytes": server.settings.max_upload_bytes,
            "write_tokens": server.settings.max_tokens,
        }
        return JsonResponse({"models": models, "limits": limits})

    async def _info(self, request: Request) -> Response:
        place = self._place(request)
        return await self._described(server_of(request), place.session)

    async def _described(self, server: Server, session: str) -> Response:
        return JsonResponse(await asyncio.to_thread(self._describe, self._at(server, session)))

    def _describe(self, place: Place) -> dict[str, Any]:
        store, transcript = place.store, place.transcript
        facts, state = store.session(place.session)
        use = store.model_of(place.session).memory_use(state, facts.memory_on)
        length = max((group.slots for group in use.groups() if group.long), default=0)
        return {
            "id": place.session,
            "model": place.model.name,
            "tokens": facts.tokens,
            "shown": len(transcript),
            "full": transcript.is_full,
            "busy": store.is_busy(place.session),
            "unmeasured": sum(len(piece) - 1 for piece in unmeasured(transcript)),
            "interrupted": self.interrupted.get(place.session),
            "memory": {
                "groups": [group._asdict() for group in use.groups()],
                "memory_tokens": use.memory_tokens,
                "open": use.open,
                "segment": use.segment,
                "bytes": use.nbytes,
                "length": length,
            },
        }

    async def _fork(self, request: Request) -> Response:
        place = self._place(request)
        fork = await asyncio.to_thread(place.store.fork, place.session)
        self.transcripts.put(fork, place.transcript.copy())
        return await self._described(server_of(request), fork)

    async def _read(self, request: Request) -> Response:
        place, server = self._place(request), server_of(request)
        name = request.query_params.get("name", "")[:200] or "the text"
        data = await limited_body(request, min(MOST_SHOWN_BYTES, server.settings.max_upload_bytes))
        ids = await asyncio.to_thread(_encoded, place.model, data, name)
        prefix = () if place.store.facts(place.session).tokens else place.model.prefix
        return self._stream(server, ReadWork(place, [*prefix, *ids], name))

    async def _write(self, request: Request) -> Response:
        place, server = self._place(request), server_of(request)
        fields = await json_body(request, server.settings)
        return self._stream(server, WriteWork(place, _writing(fields, server.settings.max_tokens)))

    async def _measure(self, request: Request) -> Response:
        return self._stream(server_of(request), MeasureWork(self._place(request)))

    def _stream(self, server: Server, work: Work) -> Response:
        return EventStream(self._events(server, work), LONGEST_WORK, server.metrics.cancelled.inc)

    async def _events(self, server: Server, work: Work) -> AsyncGenerator[dict[str, Any], None]:
        """The events of some work, then the session after it."""
        if work.kind != "measure":
            self.interrupted.pop(work.place.session, None)
        try:
            with server.admitted():
                async with aclosing(work.events()) as events:
                    async for event in events:
                        yield event
        except (GeneratorExit, asyncio.CancelledError):
            self._note_interruption(work)
            raise
        finally:
            saving = asyncio.to_thread(self.transcripts.save, work.place.session)
            await asyncio.shield(asyncio.ensure_future(saving))
        yield {"type": "done", "session": await asyncio.to_thread(self._describe, work.place)}

    def _note_interruption(self, work: Work) -> None:
        """The client is gone: the page says so when it is opened again."""
        if work.kind != "measure":
            about = {"kind": work.kind, "name": work.name, "tokens": work.done, "total": work.total}
            self.interrupted[work.place.session] = about

    async def _window(self, request: Request) -> Response:
        place = self._place(request)
        begin = _number(request, "begin", 0)
        end = min(_number(request, "end", begin + PAGE_TOKENS), begin + PAGE_TOKENS)
        # While tokens are added all repetitions would be searched again for each window.
        repeats = not place.store.is_busy(place.session)
        make = functools.partial(window_json, place.transcript, place.model.codec, begin, end, repeats=repeats)
        return JsonResponse(await asyncio.to_thread(make))

    async def _token(self, request: Request) -> Response:
        place, at = self._place(request), _number(request, "at", 0)
        if at >= len(place.transcript):
            raise not_found(f"token {at:,} is not shown: there are {len(place.transcript):,}")
        return JsonResponse(await asyncio.to_thread(self._token_details, place, at))

    def _token_details(self, place: Place, at: int) -> dict[str, Any]:
        facts, state = place.store.session(place.session)
        use = place.store.model_of(place.session).memory_use(state, facts.memory_on)
        slots = max((layer.slots for layer in use.layers), default=0)
        return self.details.describe(place.session, place.model, place.transcript, at, slots)

    async def _overview(self, request: Request) -> Response:
        return JsonResponse(await asyncio.to_thread(overview_json, self._place(request).transcript))

    async def _compare(self, request: Request) -> Response:
        """The losses of one text after each of two sessions, which stay as they are."""
        server = server_of(request)
        fields = await json_body(request, server.settings)
        fields.only(("sessions", "text"))
        places = [self._at(server, session) for session in fields.items("sessions", string_item)]
        text = fields.text("text", "", longest=MOST_COMPARED)
        if len(places) != 2 or places[0].model is not places[1].model:
            raise invalid("a comparison needs two sessions of one model", "sessions")
        ids = _encoded(places[0].model, text.encode("utf-8", "surrogatepass"), "the text")
        with server.admitted():
            found = [await _losses_after(place, ids) for place in places]
        known = [losses[np.isfinite(losses)] for losses in found]
        common = min(map(len, known))  # the first token is not predicted after an empty memory
        mean = [float(losses[len(losses) - common :].mean()) * BITS if common else None for losses in known]
        texts = token_texts(places[0].model.codec, [], ids)
        return JsonResponse({"texts": texts, "bits": [in_bits(losses) for losses in found], "mean": mean})

    def _place(self, request: Request) -> Place:
        return self._at(server_of(request), request.path_params["session"])

    def _at(self, server: Server, session: str) -> Place:
        store = _store(server)
        model = server.model(store.model_of(session).name)
        return Place(session=session, store=store, model=model, transcripts=self.transcripts)


def _route(path: str, endpoint: Endpoint, method: str = "GET") -> Route:
    return Route(path, endpoint, methods=[method])


def _store(server: Server) -> SessionStore:
    if server.store is None:
        raise invalid("this server keeps no sessions, which the playground needs")
    return server.store


def _encoded(model: ServedModel, data: bytes, name: str) -> list[int]:
    ids = list(model.codec.encode(uploaded_text(data, name)))
    if not ids:
        raise MnemoError(f"{name} contains no text that the model's tokenizer keeps")
    return ids


def _writing(fields: Fields, most_tokens: int) -> Writing:
    fields.only(("tokens", "temperature", "top_p", "seed"))
    sampling = Sampling(fields.number("temperature", 1.0, 0, 1000), None, fields.number("top_p", None, 0, 1))
    sampling.check()
    return Writing(
        tokens=fields.count("tokens", 200, 1, most_tokens),
        sampling=sampling,
        seed=fields.count("seed", 0, 0, LARGEST_SEED),
    )


async def _losses_after(place: Place, ids: list[int]) -> np.ndarray:
    """Return the losses (T,) in nats; NaN for a token that nothing predicts."""
    async with place.store.turn(place.session, place.model.name) as turn:
        job = ReadJob(state=turn.state, ids=[torch.tensor(ids)], keep_losses=True)
        losses = await read_losses(turn.engine.submit(job))
    return np.array([math.nan] * (len(ids) - len(losses)) + losses)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise invalid(f"'{name}' must be a whole number", name)
    return int(text)
