"""Time an engine under many sessions.

1. All sessions arrive at once, each with a prompt to read and a few tokens to write: time to the first token.
2. All sessions have read their prompts and write: tokens per second in all, and the time between tokens of a session.
   The same number of texts in one fixed batch, in which nothing joins and leaves, is the speed to compare with.
3. All sessions arrive at once, read their prompts and write their texts: tokens per second of everything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemo.bench.timing import allocated, peak_over, reset_peak
from mnemo.inference.generation import TextState, TextWriter
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import nbytes, tree_zip
from mnemo.model import Model
from mnemo.progress import ShowProgress, silent
from mnemo.serving.batched_engine import BatchedEngine
from mnemo.serving.engine import Engine, ReadJob, WriteJob

FIRST_TOKENS = 4
"""Tokens that a session writes after its prompt when all arrive at once."""
WARMUP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Workload:
    prompt: int = 512
    """Tokens that each session reads"""
    tokens: int = 128
    """Tokens that each session writes"""
    rows: int | None = None
    """Rows of the engine; its default if left out"""


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    sessions: int
    rows: int
    first_token_p50: float
    first_token_p99: float
    """Seconds from the arrival of all sessions to the first token of each, prompts included"""
    tokens_per_second: float
    """Written by all sessions together after their prompts; joining and leaving the batch included"""
    total_tokens_per_second: float
    """Read and written, from the arrival of all sessions to the last token"""
    rows_in_use: float
    """Share of the rows that have a text, of those that could have one, in the steps of the writing"""
    read_passes: int
    """Passes in which all prompts are read"""
    batch_tokens_per_second: float
    """The same for one fixed batch of as many texts, at most as many as the engine has rows"""
    token_p50: float
    token_p99: float
    """Seconds between two tokens of a session"""
    state_bytes: int
    """Of one session after its text: constant, however long the text is"""
    peak_bytes: int | None
    """Largest GPU memory, without the model's weights; None on a CPU"""

    @property
    def share(self) -> float:
        """Speed as a share of the fixed batch's."""
        return self.tokens_per_second / self.batch_tokens_per_second

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"share_of_batch": self.share}


def measure_sessions(
    model: Model, segment: int, counts: Sequence[int], load: Workload, progress: ShowProgress = silent
) -> list[LoadResult]:
    """Measure an engine with each number of sessions."""
    with progress("sessions", sum(counts), unit="sessions") as bar:
        results = []
        for count in counts:
            results.append(_measure(model, segment, count, load))
            bar.advance(count)
        return results


def _measure(model: Model, segment: int, count: int, load: Workload) -> LoadResult:
    before = allocated(model.device)
    reset_peak(model.device)
    with closing(BatchedEngine(model, segment, rows=load.rows, queue_limit=2 * count)) as engine:
        # Compilation and recording of CUDA graphs belong to the start of a server.
        states = asyncio.run(_arrive(engine, _prompts(model, load, 1), FIRST_TOKENS))[1]
        asyncio.run(_write(engine, states, WARMUP_TOKENS))
        prompts, start = _prompts(model, load, count), engine.stats()
        waits, states, _ = asyncio.run(_arrive(engine, prompts, FIRST_TOKENS))
        arrived, begin = engine.stats(), time.perf_counter()
        times = asyncio.run(_write(engine, states, load.tokens))
        seconds = max(stamps[-1] for stamps in times) - begin
        written, rows = engine.stats(), engine.rows
        total_seconds = asyncio.run(_arrive(engine, prompts, load.tokens))[2]
    peak = peak_over(before, model.device)
    gaps = np.concatenate([np.diff(stamps) for stamps in times])
    return LoadResult(
        sessions=count,
        rows=rows,
        first_token_p50=float(np.percentile(waits, 50)),
        first_token_p99=float(np.percentile(waits, 99)),
        tokens_per_second=count * load.tokens / seconds,
        total_tokens_per_second=count * (load.prompt + load.tokens) / total_seconds,
        rows_in_use=count * load.tokens / ((written.steps - arrived.steps) * min(rows, count)),
        read_passes=arrived.passes - start.passes,
        batch_tokens_per_second=_batch_speed(model, segment, states[:rows], load.tokens),
        token_p50=float(np.percentile(gaps, 50)),
        token_p99=float(np.percentile(gaps, 99)),
        state_bytes=nbytes(states[0]),
        peak_bytes=peak,
    )


def _prompts(model: Model, load: Workload, count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return list(torch.randint(model.config.vocab_size, (count, load.prompt), generator=generator))


async def _arrive(engine: Engine, prompts: Sequence[Tensor], tokens: int) -> tuple[list[float], list[TextState], float]:
    """Seconds to the first token of each session, their states after their prompts, and seconds to the last token."""
    start = time.perf_counter()

    async def session(ids: Tensor, seed: int) -> tuple[list[float], TextState]:
        reading = engine.submit(ReadJob(state=None, ids=[ids], together=True))
        async for _ in reading.aevents():
            pass
        state = reading.result().state
        assert isinstance(state, TextState)
        return await _one(engine, state, tokens, seed), state

    pairs = await asyncio.gather(*(session(ids, seed) for seed, ids in enumerate(prompts)))
    waits = [stamps[0] - start for stamps, _ in pairs]
    return waits, [state for _, state in pairs], max(stamps[-1] for stamps, _ in pairs) - start


async def _write(engine: Engine, states: Sequence[TextState], tokens: int) -> list[list[float]]:
    """The times at which every token of each session arrived."""
    return await asyncio.gather(*(_one(engine, state, tokens, seed) for seed, state in enumerate(states)))


async def _one(engine: Engine, state: TextState, tokens: int, seed: int) -> list[float]:
    handle = engine.submit(WriteJob(state=state, num_tokens=tokens, sampling=Sampling(), seed=seed))
    return [time.perf_counter() async for _ in handle.aevents()]


def _batch_speed(model: Model, segment: int, states: Sequence[TextState], tokens: int) -> float:
    """Tokens per second of texts in one batch that stays the same."""
    writer = TextWriter(model, tree_zip(lambda *parts: torch.cat(parts), *states), segment, Sampling())
    draws = torch.rand(WARMUP_TOKENS + tokens, len(states), dtype=torch.float64)
    for draw in draws[:WARMUP_TOKENS]:
        writer.write(draw)
    begin = time.perf_counter()
    for draw in draws[WARMUP_TOKENS:]:
        writer.write(draw)
    return len(states) * tokens / (time.perf_counter() - begin)
