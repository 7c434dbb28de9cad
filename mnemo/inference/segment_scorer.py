"""Scoring one segment after the other, with buffers for memories that stay in place.

`open_scorer` chooses the fastest way:
- On a GPU, if every layer keeps Transformer-XL's memory, `RecordedScorer`: keys and values have buffers with space for
  several further segments. Each place in the buffers has its own CUDA graph; after the last place the memory is moved
  back to the front. A segment then costs its kernels only, and Python never waits for the device.
- On a GPU, with other memories whose states have a fixed size, `CopyingScorer`: one CUDA graph, which copies the state
  after a segment to where it read the state before it.
- On a CPU with several threads, `ThreadedScorer`: each thread scores some of the rows.
- Otherwise the model is called for each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from mnemo.inference.cuda_graph import RecordedFunction, shared_pool
from mnemo.inference.ring_decoder import suits
from mnemo.inference.row_threads import RowThreads, row_groups
from mnemo.memory.kv_buffer import SPARE, KeyValueCache, RewindingBuffer
from mnemo.memory.protocol import PositionTables
from mnemo.memory.state import State, leaves, tree_map, tree_zip
from mnemo.model import Model, Output

MAX_TIMES = 16
"""Most places in the buffers of a `RecordedScorer`: each has its own CUDA graph."""
FIRST_SEGMENTS = 2
"""Segments of a `CopyingScorer` before the recorded ones: few segments do not repay a recording."""
Loss = Callable[[Output, Tensor], Tensor]
"""As `Model.loss`."""


class Scorer(Protocol):
    def score(
        self, tokens: Tensor, targets: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """Read a segment (B, L) and return the losses (B, T) of its newest T tokens; arguments as of `Model`."""
        ...

    def close(self) -> None:
        """Free threads and GPU memory."""
        ...


class Recorded(Protocol):
    """Scores segments of one length in CUDA graphs."""

    @property
    def remembers(self) -> bool:
        """Whether there is a state to carry over."""
        ...

    def score(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """As `Scorer.score`, without padding and restarts."""
        ...

    def state(self) -> State:
        """The state after the newest segment; nothing may be scored after that."""
        ...

    def close(self) -> None:
        """Free the graphs."""
        ...


def losses_at(model: Model, temperatures: Sequence[float], out: Output, targets: Tensor) -> Tensor:
    """(S, B, L): `Model.loss` at each of S temperatures."""
    return torch.stack([model.loss(out, targets, temperature) for temperature in temperatures])


def open_scorer(model: Model, state: State, segment: int, temperatures: Sequence[float] | None = None) -> Scorer:
    """The fastest scorer for this model on its device; it takes `state` over.

    With `temperatures`, losses have a further first dimension, with the loss at each temperature.
    """
    groups = row_groups(model, state, segment)
    if len(groups) == 1:
        return SegmentScorer(model, state, segment, temperatures)
    return ThreadedScorer(model, state, segment, groups, temperatures)


class SegmentScorer:
    """Calls the model for each segment, or replays CUDA graphs for segments of the usual length."""

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
        self.recorded = self._record() if self._may_record() else None

    def _may_record(self) -> bool:
        return self.model.device.type == "cuda"

    def _record(self) -> Recorded | None:
        if can_record(self.model):
            return RecordedScorer(self.model, self.state, self.segment, self.tables, self.loss)
        return CopyingScorer(self.model, self.state, self.tables, self.loss) if can_capture(self.model) else None

    def score(
        self, tokens: Tensor, targets: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """As `Scorer.score`."""
        if self.recorded is not None and lengths is None and starts is None and tokens.shape[1] == self.segment:
            return self.recorded.score(tokens, targets)
        if self.recorded is not None and self.recorded.remembers:
            self.state = self.recorded.state()
            self.close()
            self.recorded = None
        out, self.state = self.model(tokens, self.state, lengths=lengths, starts=starts, tables=self.tables)
        return self.loss(out, targets)

    def close(self) -> None:
        # Break the reference cycle; otherwise GPU memory is freed only by the next garbage collection.
        if self.recorded is not None:
            self.recorded.close()


class ThreadedScorer:
    """Scores each group of rows in its own thread."""

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
        self.scorers = [SegmentScorer(model, part, segment, temperatures, tables) for part in parts]

    def score(
        self, tokens: Tensor, targets: Tensor, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """As `Scorer.score`."""
        given = (tokens, targets, lengths, starts)
        calls = [
            partial(scorer.score, *(None if part is None else part[rows] for part in given))
            for scorer, rows in zip(self.scorers, self.groups, strict=True)
        ]
        return torch.cat(self.threads.run(calls), dim=-2)

    def close(self) -> None:
        self.threads.pool.shutdown()


def can_record(model: Model) -> bool:
    """Whether segments can be recorded with buffers for keys and values."""
    return suits(model.config) and can_capture(model)


def can_capture(model: Model) -> bool:
    """Whether a CUDA graph can be made of a segment: an adaptive embedding would wait for the device to find its bins,
    and some memories cannot be compiled or recorded in training either."""
    memories = model.config.memory.memories(model.config.num_layers)
    return len(model.embedding.bins) == 1 and all(memory.traits.compile_obstacle is None for memory in memories)


def with_dtype(model: Model, dtype: torch.dtype) -> Model:
    """A copy of the model with weights of another type."""
    with torch.device("meta"):
        other = Model(model.config)
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    other.load_state_dict(weights, assign=True)
    return other.train(model.training)


class RecordedScorer:
    """Buffers for the memories, and a CUDA graph for every place in them."""

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
        self.steps: list[RecordedFunction | None] = [None] * self.times
        self.pool = shared_pool(device)

    @property
    def remembers(self) -> bool:
        """Whether any layer has a memory; without one there is no state to carry over."""
        return any(buffer.num_slots for buffer in self.buffers)

    def score(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """As `Scorer.score`, for segments of the usual length without padding."""
        if targets.shape[1] != self.targets.shape[1]:
            self.targets = torch.zeros_like(targets)
            self.steps = [None] * self.times
            # PyTorch refuses to record into a pool whose graphs have all been freed.
            self.pool = shared_pool(targets.device)
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
        """Record a place when it is reached for the second time: few segments do not repay a recording."""
        if self.rounds == 0:
            return self._step()
        step = self.steps[self.time]
        if step is None:
            step = RecordedFunction(self._step, self.tokens.device, (self.lengths,), self.pool)
            self.steps[self.time] = step
        return step()

    def _step(self) -> Tensor:
        out, after = self.model(self.tokens, self.state(), tables=self.tables)
        self.lengths.copy_(torch.stack([cache.length for cache in after]))
        return self.loss(out, self.targets)

    def state(self) -> tuple[KeyValueCache, ...]:
        """The memories at their present place in the buffers."""
        return tuple(buffer.at(self.time, length) for buffer, length in zip(self.buffers, self.lengths, strict=True))

    def close(self) -> None:
        self.steps.clear()


class CopyingScorer:
    """One CUDA graph for all segments, which reads the state from fixed tensors and copies the next one into them."""

    def __init__(self, model: Model, state: State, tables: PositionTables, loss: Loss) -> None:
        self.model, self.tables, self.loss = model, tables, loss
        self._state, self._unchanged = state, 0
        self._tokens = self._targets = torch.empty(0)
        self._step: RecordedFunction | None = None

    @property
    def remembers(self) -> bool:
        return True

    @property
    def is_recorded(self) -> bool:
        return self._step is not None and self._step.is_recorded

    def score(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """As `Scorer.score`, for segments of the usual length without padding."""
        if self._step is None or targets.shape != self._targets.shape:
            if self._unchanged < FIRST_SEGMENTS:
                return self._first(tokens, targets)
            self._prepare(tokens, targets)
        self._tokens.copy_(tokens, non_blocking=True)
        self._targets.copy_(targets, non_blocking=True)
        assert self._step is not None
        return self._step().clone()

    def _first(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Call the model itself until the state has kept its size for some segments."""
        out, after = self.model(tokens, self._state, tables=self.tables)
        self._unchanged = self._unchanged + 1 if _form(after) == _form(self._state) else 0
        self._state = after
        return self.loss(out, targets)

    def _prepare(self, tokens: Tensor, targets: Tensor) -> None:
        """Own every tensor that the recording reads: a model may return parts of its arguments as states."""
        self._tokens, self._targets = tokens.clone(), targets.clone()
        self._state = tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), self._state)
        changed = [leaf for _, leaf in leaves(self._state)]
        self._step = RecordedFunction(self._read, self.model.device, changed)

    def _read(self) -> Tensor:
        out, after = self.model(self._tokens, self._state, tables=self.tables)
        losses = self.loss(out, self._targets)
        # A part of the old state that becomes part of the new one must be read before it is overwritten.
        old = {_storage(leaf) for _, leaf in leaves(self._state)}
        after = tree_map(lambda leaf: leaf.clone() if _storage(leaf) in old else leaf, after)
        tree_zip(lambda buffer, value: buffer.copy_(value), self._state, after)
        return losses

    def state(self) -> State:
        """The state after the newest segment."""
        return self._state

    def close(self) -> None:
        self._step = None


def _storage(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def _form(state: State) -> list[tuple[torch.Size, torch.dtype]]:
    return [(leaf.shape, leaf.dtype) for _, leaf in leaves(state)]
