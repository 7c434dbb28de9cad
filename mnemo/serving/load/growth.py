"""Cost of a token and memory over the length of one conversation: a state of fixed size beside a growing cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mnemo.bench.timing import device_seconds, wait
from mnemo.inference.generation import TextState
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import nbytes
from mnemo.model import Model
from mnemo.progress import Advance, ShowProgress, silent
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.engine import ReadJob, WriteJob

LENGTHS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
UNTIMED_TOKENS, TIMED_TOKENS, PROFILED_TOKENS = 4, 32, 32
"""Tokens that are written at each length. Profiling slows Python down, so these tokens are separate."""
WRITTEN_TOKENS = UNTIMED_TOKENS + TIMED_TOKENS + PROFILED_TOKENS


class Conversation(Protocol):
    """One text that a model reads and continues."""

    name: str
    device: torch.device

    def read(self, ids: Tensor) -> None:
        """Read token ids (T,)."""
        ...

    def write(self, num_tokens: int) -> list[float]:
        """Write tokens, and return the time at which each was known."""
        ...

    def nbytes(self) -> int:
        """Bytes that have to be kept to continue the text."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class GrowthPoint:
    length: int
    """Tokens of the conversation so far"""
    seconds_per_token: float
    """Median time of a written token"""
    read_seconds_per_token: float
    """Mean time of the tokens read since the last point"""
    bytes: int
    device_seconds_per_token: float | None = None
    """Mean time of a written token for which a GPU computed; None on a CPU. The rest of the time it waited for Python.
    For an engine, it includes copying the state in and out once."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def lengths_up_to(length: int) -> list[int]:
    """The lengths at which a conversation of `length` tokens is measured."""
    return [*(step for step in LENGTHS if step < length), length]


def measure_growth(
    conversation: Conversation, lengths: Sequence[int], vocab_size: int, progress: ShowProgress = silent
) -> list[GrowthPoint]:
    """Read a random text up to each length in turn, and write some tokens there."""
    with closing(conversation), progress(conversation.name, max(lengths), unit="tokens") as bar:
        generator, points, done = torch.Generator().manual_seed(0), [], 0
        # A first short text, so that nothing is compiled or recorded while time is taken.
        for part in (8, *_parts(lengths)):
            ids = torch.randint(vocab_size, (part,), generator=generator)
            seconds = _read(conversation, ids, bar)
            done += part + WRITTEN_TOKENS
            stamps = conversation.write(UNTIMED_TOKENS + TIMED_TOKENS)[UNTIMED_TOKENS - 1 :]
            gaps = [after - before for before, after in zip(stamps, stamps[1:], strict=False)]
            busy = device_seconds(lambda: conversation.write(PROFILED_TOKENS), conversation.device)
            busy = None if busy is None else busy / PROFILED_TOKENS
            points.append(GrowthPoint(done, statistics.median(gaps), seconds / part, conversation.nbytes(), busy))
        return points[1:]


def _parts(lengths: Sequence[int]) -> list[int]:
    """Tokens to read before each measurement; the written ones count too."""
    first = lengths[0] - 2 * WRITTEN_TOKENS - 8
    return [first, *(after - before - WRITTEN_TOKENS for before, after in zip(lengths, lengths[1:], strict=False))]


def _read(conversation: Conversation, ids: Tensor, bar: Advance) -> float:
    wait(conversation.device)
    begin = time.perf_counter()
    conversation.read(ids)
    wait(conversation.device)
    bar.advance(len(ids))
    return time.perf_counter() - begin


class EngineConversation:
    """One session of an engine."""

    name = "Mnemo"

    def __init__(self, model: Model, segment: int) -> None:
        self.device, self.engine = model.device, BatchedEngine(model, segment, rows=1)
        self.state: Any = None
        self.draws = 0

    def read(self, ids: Tensor) -> None:
        self.state = self.engine.submit(ReadJob(state=self.state, ids=[ids])).result().state

    def write(self, num_tokens: int) -> list[float]:
        assert isinstance(self.state, TextState)
        job = WriteJob(state=self.state, num_tokens=num_tokens, sampling=Sampling(), seed=0, first_draw=self.draws)
        handle = self.engine.submit(job)
        stamps = [time.perf_counter() for _ in handle.events()]
        self.state, self.draws = handle.result().state, self.draws + num_tokens
        return stamps

    def nbytes(self) -> int:
        return nbytes(self.state)

    def close(self) -> None:
        self.engine.close()
