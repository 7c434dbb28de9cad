"""Rows of a decoder at different places inside their segments, which are computed together in every step.

A segment's first and last tokens are not computed here: they refresh and write memories, by the rules of each
mechanism, in a `RowGroup`. See `mnemo.memory.shared_steps` for the layout of the buffers.

Shapes: B rows, M memory slots, Q rows of a segment (tokens and memory tokens), D model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mnemo.inference.row_group import OpenMemoryTokens, RowGroup, SegmentLayers
from mnemo.memory.protocol import OpenSegment, Segment
from mnemo.memory.shared_steps import RowPlace, RowTensor, SharesSteps, copy_row, plain_tensors
from mnemo.memory.state import State, tree_map
from mnemo.ops import Causal


def can_share(layers: SegmentLayers, like: State) -> bool:
    """Whether the memories of all layers support rows at different places."""
    return all(isinstance(stage, SharesSteps) for stage in layers.open(_empty(like, 1)))


class SharedRows:
    """Buffers for `capacity` rows; `like` is a state of the same size. Which rows are in use is the caller's affair.

    Buffers have room for further columns after the M + Q of a segment. When they are used up, everything is moved back.
    """

    def __init__(self, layers: SegmentLayers, like: State, capacity: int) -> None:
        self.layers, self.model, self.capacity = layers, layers.model, capacity
        self.num_rows, self.column = layers.num_rows, 0
        self.spare = layers.num_rows
        self.like, state = like, _empty(like, capacity)
        memories = zip(self.model.stages, self.model.layer_states(state), strict=True)
        self.stages: list[OpenSegment] = [
            stage.open(memory, self.num_rows + self.spare)  # type: ignore[operator]
            for stage, memory in memories
        ]
        self.own = self.model.input_memory.own(state)
        self.tokens = torch.zeros(capacity, 1, dtype=torch.int64, device=self.model.device)
        self.slots = torch.zeros(capacity, 1, dtype=torch.int64, device=self.model.device)
        self.num_read = self.model.input_memory.num_read

    def _row_tensors(self) -> Iterator[RowTensor]:
        return _row_tensors(self.stages, self.own)

    def _place(self, row: int, num_open: int) -> RowPlace:
        """Contents end at the column before the next token's."""
        last = self.num_rows - 1
        return RowPlace(row, self.column + last - num_open, num_open - last)

    def insert(self, row: int, group: RowGroup, index: int) -> None:
        """Copy row number `index` of a group, which is inside its segment."""
        copy_row(
            _tensors_of(group), RowPlace(index), self._row_tensors(), self._place(row, group.num_open), group.num_open
        )

    def extract(self, rows: list[int], count: int) -> RowGroup:
        """A group with copies of rows, which all have `count` open tokens."""
        group = RowGroup.empty(self.layers, _empty(self.like, len(rows)), rows)
        group.count = count
        for index, row in enumerate(rows):
            place = self._place(row, group.num_open)
            copy_row(self._row_tensors(), place, _tensors_of(group), RowPlace(index), group.num_open)
        return group

    def copy_from(self, other: SharedRows, row: int, target: int, count: int) -> None:
        """Copy a row with `count` open tokens of the same or other buffers."""
        num_open = self.num_read + count
        places = other._place(row, num_open), self._place(target, num_open)
        copy_row(other._row_tensors(), places[0], self._row_tensors(), places[1], num_open)

    def feed(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Read one token (n, 1) of each of the first n rows, after counts[b] open tokens; return (n, 1, D).

        All rows of the buffers are computed, and advance.
        """
        model, last = self.model, self.num_rows - 1
        self.tokens[: len(tokens)] = tokens
        if model.config.positions.absolute:
            self.slots[: len(counts), 0] = self.num_read + torch.tensor(counts)
        segment = Segment(tables=self.layers.tables, same_length=model.config.same_length, row_mask=Causal())
        x = model.at_input(model.embedding(self.tokens), self.slots, self.num_rows)
        for index, stage in enumerate(self.stages):
            assert isinstance(stage, SharesSteps)
            x = model.enter(index, x, self.slots, self.num_rows)
            x = stage.window(self.column).feed(x, last, segment)
        self._advance()
        return x[: len(tokens)]

    def _advance(self) -> None:
        """Go on to the next column; back to the first one when all are used up."""
        self.column += 1
        full = self.column == self.spare
        for tensor, time, slots, counts_memory in self._row_tensors():
            if counts_memory:
                tensor += 1
            if full and time is not None:
                width = slots + self.num_rows - 1
                kept = tensor.narrow(time, self.column, width).clone()
                tensor.zero_().narrow(time, 0, width).copy_(kept)
        self.column = 0 if full else self.column


def _row_tensors(stages: Sequence[OpenSegment], own: State) -> Iterator[RowTensor]:
    for stage in stages:
        assert isinstance(stage, SharesSteps)
        yield from stage.row_tensors()
    yield from plain_tensors(own)


def _tensors_of(group: RowGroup) -> Iterator[RowTensor]:
    tokens = group.memory_tokens
    return _row_tensors(group.stages, tokens.tokens if isinstance(tokens, OpenMemoryTokens) else None)


def _empty(like: State, rows: int) -> State:
    """An empty state of the size of another one."""
    return tree_map(lambda leaf: leaf.new_zeros(rows, *leaf.shape[1:]), like)
