"""Continuations of prompts: the work of one completion request, from token ids to pieces of text.

A prompt is read once; its n continuations start from the same state. The work runs in a task that is never cancelled by
asyncio: when the client disconnects, the jobs in the engine are cancelled, and the task ends by itself within a step.
So a session is always left in a state between two tokens.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from mnemo.errors import MnemoError
from mnemo.inference.generation import AnyState
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.draws import LARGEST_SEED
from mnemo.serving.engine import Engine, EngineClosed, Handle, Job, Progress, ReadJob, Token, WriteJob
from mnemo.serving.errors import ApiError
from mnemo.serving.forgetting import ForgettingEngine, ForgettingHandle
from mnemo.serving.served_model import ServedModel
from mnemo.serving.store import Turn
from mnemo.serving.text_stream import TAIL, TextStream

AnyHandle = Handle | ForgettingHandle
E = TypeVar("E")
"""An event, which is not None."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The checked content of a completion request."""

    model: ServedModel
    prompts: tuple[tuple[int, ...], ...]
    """Token ids; an empty prompt continues the session, or starts a document"""
    max_tokens: int
    sampling: Sampling
    seed: int | None
    """None: a random one, or that of the session"""
    n: int = 1
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """Likeliest tokens that are reported with every token; None: no log-probabilities at all"""
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    session: str | None = None
    fork: bool = False
    """Leave the session as it is"""


@dataclass(frozen=True)
class TokenText:
    """A token with its log-probability, for `logprobs`."""

    id: int
    offset: int
    """Characters of the choice's text before the token"""
    logprob: float | None
    """None for the first token of an empty text, which is not predicted"""
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Piece:
    """Text that is added to a choice."""

    index: int
    text: str
    tokens: tuple[TokenText, ...] = ()
    finish: str | None = None
    """In the last piece of a choice: "stop" or "length" """


@dataclass
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_read: int = 0
    """All tokens of the text so far, those of earlier requests of the session included"""
    state_bytes: int = 0

    def to_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "tokens_read": self.tokens_read,
            "state_bytes": self.state_bytes,
        }


@dataclass(frozen=True)
class _Start:
    """What a choice continues."""

    index: int
    state: AnyState
    before: tuple[int, ...]
    """The last tokens before the continuation"""
    offset: int
    """Characters of the choice's text so far"""


class EngineWork(ABC, Generic[E]):
    """Work with an engine, whose events are consumed as they happen."""

    def __init__(self) -> None:
        self.cancelled = False
        self._events: asyncio.Queue[E | None] = asyncio.Queue()
        self._handles: list[AnyHandle] = []

    @abstractmethod
    async def work(self) -> None: ...

    async def events(self) -> AsyncGenerator[E, None]:
        """All events. Closing the iterator stops the work and waits for its end."""
        task = asyncio.create_task(self._guarded())
        try:
            while (event := await self._events.get()) is not None:
                yield event
            await task
        finally:
            self.cancel()
            await end_of(task)

    async def _guarded(self) -> None:
        try:
            await self.work()
        finally:
            self._events.put_nowait(None)

    def cancel(self) -> None:
        self.cancelled = True
        for handle in self._handles:
            handle.cancel()

    def submit(self, engine: Engine | ForgettingEngine, job: Job) -> AnyHandle:
        handle = engine.submit(job)
        self._handles.append(handle)
        if self.cancelled:
            handle.cancel()
        return handle


class Continuation(EngineWork[Piece]):
    """The work of one request: all pieces of all choices. `turn`: the session to continue, if there is one."""

    def __init__(self, wanted: Wanted, seed: int, turn: Turn | None = None) -> None:
        super().__init__()
        self.wanted, self.model, self.seed, self.turn = wanted, wanted.model, seed, turn
        self.usage = Usage(prompt_tokens=sum(map(len, wanted.prompts)))
        self._first_draw = turn.draws if turn is not None and wanted.seed is None else 0

    @property
    def _moves_session(self) -> bool:
        """Whether the next request of the session continues the text."""
        return self.turn is not None and not self.wanted.fork

    @property
    def _engine(self) -> Engine | ForgettingEngine:
        return (self.model if self.turn is None else self.turn).engine

    async def work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number, prompt in enumerate(self.wanted.prompts):
                    group.create_task(self._continue(number, prompt))
        except* Exception as errors:
            self.cancel()
            raise _first(errors) from None

    async def _continue(self, number: int, prompt: tuple[int, ...]) -> None:
        """Read one prompt, and write its continuations."""
        wanted, turn = self.wanted, self.turn
        before = () if turn is None else turn.tail
        state = self.model.empty if turn is None else turn.state
        start = prompt or (self.model.start if turn is None or not turn.tokens else ())
        first = number * wanted.n
        text = ""
        if start:
            state, echoed = await self._read(state, before, start)
            text = self._echo(first, before, prompt, echoed)
        if self.cancelled:
            return
        self.usage.tokens_read += len(start) + (0 if turn is None else turn.tokens)
        latest = (*before, *start)[-TAIL:]
        choices = [_Start(first + k, state, latest, len(text)) for k in range(wanted.n)]
        if not wanted.max_tokens:
            await self._end(choices[0], start, (), state)
            self._finish(choices)
            return
        async with asyncio.TaskGroup() as group:
            for choice in choices:
                group.create_task(self._write(choice, start))

    async def _read(
        self, state: AnyState, before: tuple[int, ...], ids: tuple[int, ...]
    ) -> tuple[AnyState, list[TokenText]]:
        """The state after the tokens, and their log-probabilities if they are echoed."""
        top = self.wanted.top_logprobs if self.wanted.echo else None
        job = ReadJob(
            state=state,
            ids=[torch.tensor(ids)],
            keep_losses=top is not None,
            top_logprobs=top or 0,
            together=self.turn is None,  # a session must have the same bits after a restart
        )
        handle, losses, likeliest = self.submit(self._engine, job), [], []
        async with aclosing(_events(handle)) as events:
            async for event in events:
                if isinstance(event, Progress):
                    losses += event.losses
                    likeliest += event.top
        result = handle.result()
        if top is None or result.cancelled:
            return result.state, []
        missing = len(ids) - len(losses)
        logprobs = [None] * missing + [-loss for loss in losses]
        likeliest = [()] * (len(ids) - len(likeliest)) + likeliest
        stream, offset, texts = TextStream(self.model.codec.decoder(), before), 0, []
        for token, logprob, top in zip(ids, logprobs, likeliest, strict=True):
            texts.append(TokenText(token, offset, logprob, top))
            offset += len(stream.feed(token))
        return result.state, texts

    def _echo(self, first: int, before: tuple[int, ...], prompt: tuple[int, ...], tokens: list[TokenText]) -> str:
        """Emit the prompt as the begin of each of its choices, if that is wanted, and return its text."""
        if not self.wanted.echo or not prompt:
            return ""
        stream = TextStream(self.model.codec.decoder(), before)
        text = "".join(map(stream.feed, prompt)) + stream.finish(is_end=not self.wanted.max_tokens)
        for index in range(first, first + self.wanted.n):
            self._events.put_nowait(Piece(index, text, tuple(tokens)))
        return text

    def _finish(self, choices: Sequence[_Start]) -> None:
        for choice in choices:
            self._events.put_nowait(Piece(choice.index, "", (), "length"))

    async def _write(self, start: _Start, read: tuple[int, ...]) -> None:
        """Write one continuation, and move the session forward."""
        wanted, written = self.wanted, []
        handle = self.submit(self._engine, self._write_job(start))
        stream, offset = self._stream(start), start.offset
        async with aclosing(_events(handle)) as events:
            async for event in events:
                assert isinstance(event, Token)
                written.append(event.id)
                text = stream.feed(event.id)
                shown = TokenText(event.id, offset, event.logprob, event.top)
                offset += len(text)
                tokens = () if wanted.top_logprobs is None else (shown,)
                if text or tokens:
                    self._events.put_nowait(Piece(start.index, text, tokens))
        rest, result = stream.finish(is_end=not self._moves_session), handle.result()
        if written or not result.cancelled:
            await self._end(start, read, written, result.state)
        self._events.put_nowait(Piece(start.index, rest, (), "stop" if stream.stopped else "length"))

    def _write_job(self, start: _Start) -> WriteJob:
        wanted, until = self.wanted, None
        if wanted.stop or self.model.end:
            until = _Until(self._stream(start))
        return WriteJob(
            state=start.state,  # type: ignore[arg-type]
            num_tokens=wanted.max_tokens,
            sampling=wanted.sampling,
            seed=(self.seed + start.index) % LARGEST_SEED,
            first_draw=self._first_draw,
            top_logprobs=wanted.top_logprobs or 0,
            until=until,
        )

    def _stream(self, start: _Start) -> TextStream:
        return TextStream(self.model.codec.decoder(), start.before, self.wanted.stop, self.model.end)

    async def _end(self, start: _Start, read: Sequence[int], written: Sequence[int], state: AnyState) -> None:
        """Count the tokens of a choice, and move the session forward.

        A request that was cancelled before it answered anything leaves the session as it was.
        """
        self.usage.completion_tokens += len(written)
        if start.index % self.wanted.n == 0:  # the state of one choice for each prompt
            self.usage.tokens_read += len(written)
            self.usage.state_bytes += self.model.state_bytes(state)
        if not self._moves_session or (self.cancelled and not self.wanted.stream):
            return
        assert self.turn is not None
        draws = self._first_draw + len(written)
        await self.turn.advance(read=read, state=start.state, written=written, seed=self.seed, draws=draws)


class _Until:
    """Ends a continuation in the engine's thread, so that the state is exactly that after the last token."""

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream

    def __call__(self, token: int) -> bool:
        self.stream.feed(token)
        return self.stream.stopped


async def _events(handle: AnyHandle) -> AsyncGenerator[Token | Progress, None]:
    """The events of a job; its failure becomes an error of the server, because the request itself was checked."""
    try:
        async for event in handle.aevents():
            yield event
    except EngineClosed:
        raise
    except MnemoError as error:
        raise ApiError(500, str(error), kind="server_error", code="model_failed") from None


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def end_of(task: asyncio.Task[None]) -> None:
    """Wait for the end of a task; further cancellations of the caller do not interrupt it."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if not task.cancelled():
        task.exception()  # marks it as seen
    if cancelled:
        raise asyncio.CancelledError
