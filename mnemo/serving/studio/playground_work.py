"""Reading and writing in the playground: a session moves forward, and its transcript with it.

Work runs in a task that asyncio never cancels. When the client disconnects, the job in the engine is cancelled, and the
task ends by itself within a step: the session and its transcript then hold the tokens up to there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mnemo.inference.sampling_options import Sampling
from mnemo.serving.continuation import AnyHandle, EngineWork
from mnemo.serving.engine import Progress, ReadJob, Token, WriteJob
from mnemo.serving.served_model import ServedModel
from mnemo.serving.store import SessionStore, Turn
from mnemo.serving.studio.playground_windows import BITS
from mnemo.serving.studio.transcript import Tokens, Transcript
from mnemo.serving.studio.transcripts import Transcripts
from mnemo.serving.text_stream import TextStream

AT_ONCE = 4
"""Pieces whose losses without memory are in the engine at the same time."""
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A session with everything that work on it needs."""

    session: str
    store: SessionStore
    model: ServedModel
    transcripts: Transcripts

    @property
    def segment(self) -> int:
        return self.store.models[self.model.name].segment

    @property
    def transcript(self) -> Transcript:
        return self.transcripts.get(self.session, self.segment, str(self.model.about.get("unit", "")))


class Work(EngineWork[Event]):
    """Work on a session. `done`: tokens so far; `total`: tokens in the end."""

    kind: str
    name = ""

    def __init__(self, place: Place, total: int) -> None:
        super().__init__()
        self.place, self.done, self.total = place, 0, total

    def emit(self, kind: str, **content: Any) -> None:
        self._events.put_nowait({"type": kind, **content})

    def append(self, turn: Turn, ids: Sequence[int], nats: Sequence[float], *, written: bool) -> None:
        """Add tokens to the transcript. `nats` may lack that of the first token of a text."""
        known = np.concatenate([np.full(len(ids) - len(nats), np.nan), np.asarray(nats, np.float64)])
        segment, position = self.place.segment, turn.tokens + self.done
        opened = (turn.model.num_open(turn.state) + self.done) % segment
        self.place.transcript.append(Tokens(np.asarray(ids), position, opened, written, known))
        self.done += len(ids)


class ReadWork(Work):
    """Read a text into a session."""

    kind = "read"

    def __init__(self, place: Place, ids: Sequence[int], name: str) -> None:
        super().__init__(place, len(ids))
        self.ids, self.name = ids, name

    async def work(self) -> None:
        async with self.place.store.turn(self.place.session, self.place.model.name) as turn:
            self.emit("progress", tokens=0, total=self.total, shown=len(self.place.transcript))
            await self.read(turn, self.ids)

    async def read(self, turn: Turn, ids: Sequence[int]) -> None:
        handle = self.submit(turn.engine, ReadJob(state=turn.state, ids=[torch.tensor(ids)], keep_losses=True))
        async with aclosing(handle.aevents()) as events:  # type: ignore[type-var]
            async for event in events:
                assert isinstance(event, Progress)
                self.append(turn, ids[self.done : event.tokens], event.losses, written=False)
                self.emit("progress", tokens=self.done, total=self.total, shown=len(self.place.transcript))
        if self.done:
            turn.take_read(turn.noted_ids(ids[: self.done]), handle.result().state)
            await asyncio.to_thread(turn.commit)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Settings of a continuation."""

    tokens: int
    sampling: Sampling
    seed: int


class WriteWork(Work):
    """Continue a session."""

    kind = "write"

    def __init__(self, place: Place, settings: Writing) -> None:
        super().__init__(place, settings.tokens)
        self.settings = settings

    async def work(self) -> None:
        async with self.place.store.turn(self.place.session, self.place.model.name) as turn:
            if not turn.tokens:
                await self._begin(turn)
            await self._write(turn)

    async def _begin(self, turn: Turn) -> None:
        """Read the token before a document, which an empty session needs."""
        ids = turn.model.start_ids().tolist()
        handle = self.submit(turn.engine, ReadJob(state=turn.state, ids=[torch.tensor(ids)], keep_losses=True))
        self.append(turn, ids, await read_losses(handle), written=False)
        turn.take_read(turn.noted_ids(ids), handle.result().state)
        self.done = 0

    async def _write(self, turn: Turn) -> None:
        seed, sampling, first = self.settings.seed, self.settings.sampling, turn.tokens
        job = WriteJob(
            state=turn.state, num_tokens=self.total, sampling=sampling, seed=seed, first_draw=first, until=self._ends
        )
        handle = self.submit(turn.engine, job)
        stream, ids = TextStream(self.place.model.codec.decoder(), turn.tail), []
        async with aclosing(handle.aevents()) as events:  # type: ignore[type-var]
            async for event in events:
                assert isinstance(event, Token)
                ids.append(event.id)
                self.append(turn, [event.id], [-event.logprob], written=True)
                at = len(self.place.transcript) - 1
                self.emit("token", at=at, text=stream.feed(event.id), bits=round(-event.logprob * BITS, 3))
        if ids:
            turn.take_written(ids, seed=seed, draws=first + len(ids))
            await asyncio.to_thread(turn.commit)

    def _ends(self, token: int) -> bool:
        return token in self.place.model.end


class MeasureWork(Work):
    """Compute the losses without memory of all tokens that have none yet; the session stays as it is."""

    kind = "measure"

    def __init__(self, place: Place) -> None:
        self.pieces = unmeasured(place.transcript)
        super().__init__(place, sum(len(piece) - 1 for piece in self.pieces))

    async def work(self) -> None:
        self.emit("progress", tokens=0, total=self.total)
        waiting = iter(self.pieces)
        await asyncio.gather(*(self._measure_all(waiting) for _ in range(AT_ONCE)))

    async def _measure_all(self, waiting: Any) -> None:
        for piece in waiting:
            if self.cancelled:
                return
            await self._measure(piece)

    async def _measure(self, piece: range) -> None:
        transcript, model = self.place.transcript, self.place.model
        ids = torch.from_numpy(transcript.rows["id"][piece.start : piece.stop].astype(np.int64))
        job = ReadJob(state=model.empty, ids=[ids], keep_losses=True)
        losses = await read_losses(self.submit(model.engine, job))
        if len(losses) == len(piece) - 1:  # fewer: it was cancelled
            transcript.set_baseline(piece, np.array(losses))
            self.done += len(losses)
            self.emit("progress", tokens=self.done, total=self.total)


async def read_losses(handle: AnyHandle) -> list[float]:
    """Return the losses of a job's tokens in nats."""
    losses: list[float] = []
    async with aclosing(handle.aevents()) as events:  # type: ignore[type-var]
        async for event in events:
            losses += event.losses if isinstance(event, Progress) else ()
    return losses


def unmeasured(transcript: Transcript) -> list[range]:
    """Return the pieces of a transcript whose losses without memory are missing."""
    missing = np.flatnonzero(np.isnan(transcript.rows["without"]))
    if not len(missing):
        return []
    pieces = transcript.baseline_pieces(int(missing[0]))
    without = transcript.rows["without"]
    return [piece for piece in pieces if np.isnan(without[piece.start + 1 : piece.stop]).any()]
