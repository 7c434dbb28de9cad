"""A session in the hands of one request: reads and writes go to a working copy, and are noted for the log.

Replaying a record runs the same operations on the same kind of working copy, so that it gives the same state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.engine import Engine, Event, Handle, Job, Progress, ReadJob, Result, Token, WriteJob
from mnemo.serving.session_data import (
    TAIL,
    Described,
    MemorySet,
    Operation,
    Read,
    Record,
    Session,
    Written,
    described,
)
from mnemo.session.memory_use import MemoryUse

LOGGED_TOKENS = 8192
"""Longest text that is logged token by token; after a longer one the whole state is saved instead."""
Lengths = int | tuple[int, ...] | None
"""Memory slots of the long-range layers, or of every layer; None: as in training."""
Jobs = Generator[Job, Result, None]
"""Yields jobs one after the other, and is sent the result of each."""


class SessionModel(Protocol):
    """The needs of sessions from a model; states are data of any kind that only the model and its engine look into."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Of the weights."""
        ...

    @property
    def engine(self) -> Engine: ...
    @property
    def segment(self) -> int: ...
    def start_ids(self) -> Tensor:
        """The token before a document, which an empty session reads before it writes."""
        ...

    def empty(self, lengths: Lengths) -> Any:
        """The state before any text. Raises MnemoError for lengths that are impossible or do not fit this machine."""
        ...

    def num_open(self, state: Any) -> int:
        """Tokens in the open segment."""
        ...

    def resized(self, state: Any, lengths: Lengths) -> Any:
        """The state with another memory length; the open segment keeps what it has attended to so far."""
        ...

    def committed(self, state: Any, lengths: Lengths) -> Any:
        """The state without its open segment, with another memory length."""
        ...

    def with_tokens(self, state: Any, tokens: int) -> Any:
        """The state, with another number of tokens read so far."""
        ...

    def save(self, path: Path, state: Any) -> None:
        """Write a memory file."""
        ...

    def load(self, path: Path) -> tuple[Any, int, Lengths]:
        """The state in a memory file of this model, its number of tokens, and its memory lengths."""
        ...

    def nbytes(self, state: Any) -> int: ...
    def memory_use(self, state: Any, on: bool) -> MemoryUse: ...


class Work:
    """The working copy of a session. `read` and `write` have a form for threads and one for event loops.

    A caller takes all events of a call before the next call. A caller that leaves earlier, or gets an error, drops the
    copy.
    """

    def __init__(self, model: SessionModel, session: Session) -> None:
        self.model, self.session = model, session
        self.operations: list[Operation] = []
        self.is_logged = True
        """Whether `operations` are complete; they are not after a long text."""
        self.nats, self.predicted = 0.0, 0
        """Sum of the losses of the texts read, and the number of tokens in it."""
        self.is_whole = True
        """Whether every call so far has ended without an error."""
        self._handle: Handle | None = None
        self._is_stopped = False

    def read(self, ids: Iterable[Tensor], keep_losses: bool = False) -> Iterator[Progress]:
        """Read pieces of token ids (T,) after everything so far."""
        for event in self._run(self._reading(ids, keep_losses)):
            assert isinstance(event, Progress)
            yield event

    async def aread(self, ids: Iterable[Tensor], keep_losses: bool = False) -> AsyncIterator[Progress]:
        async for event in self._arun(self._reading(ids, keep_losses)):
            assert isinstance(event, Progress)
            yield event

    def write(
        self,
        num_tokens: int,
        sampling: Sampling,
        *,
        seed: int | None = None,
        top_logprobs: int = 0,
        until: Callable[[int], bool] | None = None,
    ) -> Iterator[Token]:
        """Continue the text by at most `num_tokens`; `until` is called with each, and True makes it the last.

        `seed`: replaces the session's own random numbers, from the first one; None: they go on.
        """
        for event in self._run(self._writing(num_tokens, sampling, seed, top_logprobs, until)):
            if isinstance(event, Token):
                yield event

    async def awrite(
        self,
        num_tokens: int,
        sampling: Sampling,
        *,
        seed: int | None = None,
        top_logprobs: int = 0,
        until: Callable[[int], bool] | None = None,
    ) -> AsyncIterator[Token]:
        async for event in self._arun(self._writing(num_tokens, sampling, seed, top_logprobs, until)):
            if isinstance(event, Token):
                yield event

    def stop(self) -> None:
        """End the current `write` after its current token, as if it had been the last one; called from any thread."""
        self._is_stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def set_memory(self, length: int | None, on: bool) -> None:
        """Set the slots of the long-range layers (None: as in training), or turn all memory off.

        The newest slots stay. The tokens of the open segment are computed again with the new memory.
        """
        facts, state = self.session
        opened = facts.open
        if not facts.tokens:
            state = self.model.empty(length)
        elif opened is None and on:
            state = self.model.resized(state, length)
        else:
            memory = self.model.committed(state, length) if on else self.model.empty(length)
            state = self._reopened(state, memory)
        self.session = Session(replace(facts, lengths=length, memory_on=on), state)
        self.operations.append(MemorySet(length=length, on=on))

    def describe(self, name: str, created: float, seed: int | None = None) -> None:
        """Give the session another name, and for a fork another time of creation and perhaps another seed."""
        change = Described(name=name, created=created, seed=seed)
        self.session = self.session._replace(facts=described(self.session.facts, change))
        self.operations.append(change)

    def record(self) -> Record:
        """Everything that was done so far, as the next record of the session."""
        return Record(
            number=self.session.facts.records + 1, time=time.time(), operations=tuple(self.operations)
        )

    def replay(self, record: Record) -> bool:
        """Do what a record says; whether the model has written the same tokens again.

        If it has not (because of another version of torch, or another processor), it reads the recorded ones.
        """
        return all([self._repeat(operation) for operation in record.operations])

    def _repeat(self, operation: Operation) -> bool:
        match operation:
            case Read():
                _exhaust(self.read([torch.tensor(operation.ids)]))
            case Written():
                return self._write_again(operation)
            case MemorySet():
                self.set_memory(operation.length, operation.on)
            case Described():
                self.describe(operation.name, operation.created, operation.seed)
        return True

    def _write_again(self, written: Written) -> bool:
        before = self.session
        drawn = replace(before.facts, seed=written.seed, draws=written.first_draw)
        self.session = before._replace(facts=drawn)
        _exhaust(self.write(len(written.ids), written.sampling))
        if self.operations[-1] == written:
            return True
        self.session = before
        _exhaust(self.read([torch.tensor(written.ids)]))
        draws = written.first_draw + len(written.ids)
        self.session = self.session._replace(facts=replace(self.session.facts, seed=written.seed, draws=draws))
        return False

    def _reading(self, ids: Iterable[Tensor], keep_losses: bool) -> Jobs:
        noted = _Noted(ids, max(self.model.segment, TAIL))
        for pieces in [noted] if self.session.facts.memory_on else self._segments(noted):
            before = noted.count if isinstance(pieces, list) else 0
            result = yield ReadJob(state=self.session.state, ids=pieces, keep_losses=keep_losses)
            self.nats, self.predicted = self.nats + result.nats, self.predicted + result.predicted
            last = pieces[0].tolist() if isinstance(pieces, list) else noted.last
            self._take(result.state, last, result.tokens)
            del before
        if not noted.count:
            raise MnemoError("there is no text to read")
        self.is_logged = self.is_logged and noted.ids is not None
        self.operations.append(Read(ids=tuple(noted.ids or ())))
