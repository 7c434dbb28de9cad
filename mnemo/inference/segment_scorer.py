"""Scoring segment after segment: a private runner whose memories stay where they are.

On a GPU, and where every layer keeps Transformer-XL's memory, keys and values have buffers with room for several
segments behind them. Each place in them has its own recorded CUDA graph; behind the last one the memory is moved to the
front. So a segment costs its kernels and nothing else, and the device is never waited for. Everything else is read
by the model itself; on a CPU, by several threads, each of which takes some of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mnemo.inference.cuda_graph import Recorded, shared_pool
from mnemo.inference.ring_decoder import suits
from mnemo.inference.row_threads import RowThreads, row_groups
from mnemo.memory.kv_buffer import SPARE, KeyValueCache, RewindingBuffer
from mnemo.memory.protocol import PositionTables
from mnemo.memory.state import State, tree_map
from mnemo.model import Model, Output

MAX_TIMES = 16
"""Recorded graphs, at most."""
Loss = Callable[[Output, Tensor], Tensor]
"""As `Model.loss`."""


def losses_at(model: Model, temperatures: Sequence[float], out: Output, targets: Tensor) -> Tensor:
    """(S, B, L): `Model.loss` at every temperature."""
    return torch.stack([model.loss(out, targets, temperature) for temperature in temperatures])


def open_reader(
    model: Model, state: State, segment: int, temperatures: Sequence[float] | None = None
) -> SegmentReader | RowReaders:
    """The faster of both for this model where it is."""
    groups = row_groups(model, state, segment)
    if len(groups) == 1:
        return SegmentReader(model, state, segment, temperatures)
    return RowReaders(model, state, segment, groups, temperatures)


class SegmentReader:
    """Reads segments (B, L) behind a state, which it takes over, and scores them.

    With `temperatures`, every score is one at each of them, in a further dimension before the others.
    """

    def __init__(
        self,
        model: Model,
        state: State,
        segment: int,
        temperatures: Sequence[float] | None = None,
        tables: PositionTables | None = None,
    ) -> None:
        self.model, self.state, self.segment = model, state, segment
        self.loss: Loss = model.loss if temperatures is None else partial(losses_at, model, temperatures)
        self.tables = model.tables(segment, state) if tables is None else tables
        self.track = Track(model, state, segment, self.tables, self.loss) if self._can_record() else None

    def _can_record(self) -> bool:
        return next(self.model.parameters()).is_cuda and can_track(self.model)

    def read(
        self, tokens: Tensor, targets: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """Losses (B, T) of the newest T tokens."""
        if self.track is not None and lengths is None and starts is None and tokens.shape[1] == self.segment:
            return self.track.read(tokens, targets)
        if self.track is not None and self.track.remembers:
            self.state, self.track = self.track.state(), None
        out, self.state = self.model(tokens, self.state, lengths=lengths, starts=starts, tables=self.tables)
        return self.loss(out, targets)

    def close(self) -> None:
        """Recorded steps refer to what refers to them, and hold a device's memory until somebody looks."""
        if self.track is not None:
            self.track.steps.clear()


class RowReaders:
    """As `SegmentReader`, with every group of rows on a thread of its own."""

    def __init__(
        self,
        model: Model,
        state: State,
        segment: int,
        groups: list[slice],
        temperatures: Sequence[float] | None = None,
    ) -> None:
        self.groups, self.threads = groups, RowThreads(len(groups))
        tables = model.tables(segment, state)
        parts = [tree_map(lambda leaf, rows=rows: leaf[rows], state) for rows in groups]
        self.readers = [SegmentReader(model, part, segment, temperatures, tables) for part in parts]

    def read(
        self, tokens: Tensor, targets: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """As `SegmentReader.read`."""
        given = (tokens, targets, lengths, starts)
        calls = [
            partial(reader.read, *(None if part is None else part[rows] for part in given))
            for reader, rows in zip(self.readers, self.groups, strict=True)
        ]
        return torch.cat(self.threads.run(calls), dim=-2)

    def close(self) -> None:
        self.threads.pool.shutdown()


def can_track(model: Model) -> bool:
    """One table of tokens: bins would have to be looked into."""
    return suits(model) and len(model.embedding.bins) == 1


def in_type(model: Model, dtype: torch.dtype) -> Model:
    """The same model with weights of another type."""
    with torch.device("meta"):
        other = Model(model.config)
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    other.load_state_dict(weights, assign=True)
    return other.train(model.training)


class Track:
    """Buffers, and a recorded step for every place in them."""

    def __init__(
        self, model: Model, state: State, segment: int, tables: PositionTables, loss: Loss | None = None
    ) -> None:
        self.model, self.tables, self.time, self.rounds = model, tables, 0, 0
        self.loss = loss or model.loss
        longest = max(cache.keys.shape[2] for cache in state)
        self.times = min(MAX_TIMES, max(1, -(-longest // (SPARE * segment))))
        self.buffers = [RewindingBuffer(cache, segment, self.times) for cache in state]
        self.lengths = torch.stack([cache.length for cache in state])
        batch, device = self.lengths.shape[1], self.lengths.device
        self.tokens, self.targets = (torch.zeros(batch, segment, dtype=torch.int64, device=device) for _ in range(2))
        self.steps: list[Recorded | None] = [None] * self.times
        self.pool = shared_pool(device)

    @property
    def remembers(self) -> bool:
        """Whether any layer has a memory: without one there is no state to hand on."""
        return any(buffer.num_slots for buffer in self.buffers)

    def read(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """As `SegmentReader.read`; the targets may be fewer."""
        if targets.shape[1] != self.targets.shape[1]:
            self.targets = torch.zeros_like(targets)
            self.steps = [None] * self.times
        self.tokens.copy_(tokens, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        losses = self._run().clone()
        self.time += 1
        if self.time == self.times:
            for buffer in self.buffers:
                buffer.rewind()
            self.time, self.rounds = 0, self.rounds + 1
        return losses

    def _run(self) -> Tensor:
        """Recorded when a place is come to again: few segments are not worth it."""
        if self.rounds == 0:
            return self._step()
        step = self.steps[self.time]
        if step is None:
            step = self.steps[self.time] = Recorded(self._step, self.tokens.device, (self.lengths,), self.pool)
        return step()

    def _step(self) -> Tensor:
        out, after = self.model(self.tokens, self.state(), tables=self.tables)
        self.lengths.copy_(torch.stack([cache.length for cache in after]))
        return self.loss(out, self.targets)

    def state(self) -> tuple[KeyValueCache, ...]:
        """The memories where they are now."""
        return tuple(buffer.at(self.time, length) for buffer, length in zip(self.buffers, self.lengths, strict=True))
