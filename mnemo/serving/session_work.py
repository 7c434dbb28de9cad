"""A session in the hands of one request: reads and writes go to a working copy, and are noted for the log.

Tokens that were written are read again, all at once, and the session continues from the state after that. The state
after writing depends on the texts that were written in the same steps, by rounding. A session's texts are read alone
(`ReadJob.together` is false), in pieces that depend on nothing but the number of tokens. So the session depends on its
records alone, and replaying them gives the same state, bit for bit, at the speed of reading.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.sampling_options import Sampling
from mnemo.serving.engine import Engine, EngineFull, ReadJob, Token, WriteJob
from mnemo.serving.forgetting import ForgettingEngine
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
from mnemo.serving.session_model import Lengths, SessionModel

WAIT_SECONDS = 0.05
LOGGED_TOKENS = 8192
"""Longest text that is logged token by token; after a longer one the whole state is saved instead."""


class Work:
    """The working copy of a session.

    A caller submits jobs to `engine`, with `state` as their state, and hands over their results by `take_read` and
    `take_written`. `settle`, which waits for the engine, brings `state` to the end of the tokens written.
    """

    def __init__(self, model: SessionModel, session: Session) -> None:
        self.model, self.session = model, session
        self.operations: list[Operation] = []
        self.is_logged = True
        """Whether `operations` are complete; they are not after a long text."""
        self._unsettled: Written | None = None

    @property
    def engine(self) -> Engine | ForgettingEngine:
        facts = self.session.facts
        return self.model.engine if facts.memory_on else ForgettingEngine(self.model, facts.lengths)

    @property
    def state(self) -> Any:
        return self.session.state

    def take_read(self, text: NotedText, state: Any) -> None:
        """Continue from the state after a text that was read."""
        if not text.count:
            raise MnemoError("there is no text to read")
        self._take(state, text.last, text.count)
        self.is_logged = self.is_logged and text.ids is not None
        self.operations.append(Read(ids=tuple(text.ids or ())))

    def take_written(self, ids: Sequence[int], *, seed: int, draws: int) -> None:
        """Continue after tokens that were written from `state`; `draws`: random numbers of the seed used up then."""
        self._unsettled = Written(ids=tuple(ids), seed=seed, draws=draws)

    def settle(self) -> None:
        """Read the tokens that were written."""
        written, self._unsettled = self._unsettled, None
        if written is None:
            return
        if written.ids:
            self._take(self._after(written.ids), written.ids, len(written.ids))
        self._change(seed=written.seed, draws=written.draws)
        self.operations.append(written)

    def read(self, ids: Iterable[int]) -> None:
        """Read tokens, and wait until that is done."""
        ids = tuple(ids)
        self.take_read(self.noted_ids(ids), self._after(ids))

    def write(self, num_tokens: int, sampling: Sampling, seed: int, first_draw: int) -> tuple[int, ...]:
        """Write tokens, and wait until that is done."""
        job = WriteJob(state=self.state, num_tokens=num_tokens, sampling=sampling, seed=seed, first_draw=first_draw)
        ids = tuple(event.id for event in self.engine.submit(job).events() if isinstance(event, Token))
        self.take_written(ids, seed=seed, draws=first_draw + len(ids))
        self.settle()
        return ids

    def _after(self, ids: Sequence[int]) -> Any:
        """The state after reading tokens."""
        job = ReadJob(state=self.state, ids=(torch.tensor(ids),))
        while True:
            try:
                return self.engine.submit(job).result().state
            except EngineFull:  # the request was admitted already
                time.sleep(WAIT_SECONDS)

    def noted_ids(self, ids: Sequence[int]) -> NotedText:
        """The note of a text that was read in one piece, for `take_read`."""
        text = self.noted([torch.tensor(tuple(ids))])
        for _ in text:
            pass
        return text

    def noted(self, pieces: Iterable[Tensor]) -> NotedText:
        """A text for `ReadJob.ids` and, after that job, for `take_read`."""
        return NotedText(pieces, max(self.model.segment, TAIL))

    def set_memory(self, length: Lengths, on: bool) -> None:
        """Set the slots of the long-range layers (None: as in training), or turn all memory off.

        The newest slots stay. The tokens of the open segment are computed again with the new memory.
        """
        facts, state = self.session
        if self.model.memory_is_fixed and not (on and length is None):
            raise MnemoError(f"the memory of '{self.model.name}' has one length, and is always on")
        if not facts.tokens:
            state = self.model.empty(length)
        elif facts.open is None and on:
            state = self.model.resized(state, length)
        else:
            state = self._with_memory(length, on)
        self.session = Session(replace(facts, lengths=length, memory_on=on), state)
        self.operations.append(MemorySet(length=length, on=on))

    def _with_memory(self, length: Lengths, on: bool) -> Any:
        opened = self.session.facts.open
        if opened is None and (count := self.model.num_open(self.state)):
            left = self.model.segment - count
            raise MnemoError(f"the loaded memory ends inside a segment: change it after {left:,} more tokens")
        state = self.model.without_open(self.state, length, on)
        if not opened:
            return state
        return self.model.engine.submit(ReadJob(state=state, ids=[torch.tensor(opened)])).result().state

    def describe(self, name: str, created: float, seed: int | None = None) -> None:
        """Give the session another name, and for a fork another time of creation and perhaps another seed."""
        change = Described(name=name, created=created, seed=seed)
        self.session = self.session._replace(facts=described(self.session.facts, change))
        self.operations.append(change)

    def replay(self, record: Record) -> None:
        """Do what a record says."""
        for operation in record.operations:
            self._repeat(operation)
        self._change(records=record.number, changed=record.time)

    def _repeat(self, operation: Operation) -> None:
        match operation:
            case Read():
                self.read(operation.ids)
            case Written():
                self._unsettled = operation
                self.settle()
            case MemorySet():
                self.set_memory(operation.length, operation.on)
            case Described():
                self.describe(operation.name, operation.created, operation.seed)

    def _take(self, state: Any, last: Sequence[int], count: int) -> None:
        self.session = Session(self.session.facts.after(last, count, self.model.num_open(state)), state)

    def _change(self, **changes: Any) -> None:
        self.session = self.session._replace(facts=replace(self.session.facts, **changes))


class NotedText:
    """Pieces of a text, of which the last tokens are kept while they are read, and all tokens of a short text."""

    def __init__(self, pieces: Iterable[Tensor], num_last: int) -> None:
        self._pieces, self._num_last = pieces, num_last
        self.last: list[int] = []
        self.ids: list[int] | None = []
        """None: the text is too long."""
        self.count = 0

    def __iter__(self) -> Iterator[Tensor]:
        for piece in self._pieces:
            self.count += len(piece)
            self.last = [*self.last, *piece[-self._num_last :].tolist()][-self._num_last :]
            if self.ids is not None:
                self.ids = [*self.ids, *piece.tolist()] if self.count <= LOGGED_TOKENS else None
            yield piece
