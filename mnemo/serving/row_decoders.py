"""Decoders of texts that are written together, each at its own place of its segment; texts join and leave one by one.

The texts are rows 0 ... n - 1. `RingRows` keeps all rows in ring buffers, for models whose layers all keep
Transformer-XL's memory. `GroupRows` works for every memory.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mnemo.inference.decoder import DecodeState
from mnemo.inference.ring_decoder import Rings, suits
from mnemo.inference.row_group import RowGroup, SegmentLayers
from mnemo.memory.state import State, tree_map, tree_zip
from mnemo.model import Model
from mnemo.ops.cuda import decode_kernels


class RowDecoder(Protocol):
    fixed: bool
    """Whether a step always computes all rows, with or without texts in them"""

    def join(self, row: int, state: DecodeState) -> None:
        """Put a text of one row in place of row `row`."""
        ...

    def take(self, row: int) -> DecodeState:
        """A copy of the state of one row."""
        ...

    def move(self, source: int, target: int) -> None:
        """Let the last row take the place of another one, whose text has left; `source` is `target` for the last."""
        ...

    def feed(self, tokens: Tensor) -> Tensor:
        """Read one token (n, 1) of each of the first n rows; return the last layer's rows (n, 1, D)."""
        ...

    def changed_tensors(self) -> tuple[Tensor, ...]:
        """Tensors that `feed` changes in place; none: it cannot be recorded as a CUDA graph."""
        ...


def open_rows(model: Model, like: DecodeState, segment: int, capacity: int, fixed: bool) -> RowDecoder:
    """The faster decoder for this model, for states of the size of `like`."""
    if suits(model):
        return RingRows(model, like, segment, capacity, fixed)
    return GroupRows(model, like, segment)


class RingRows:
    def __init__(self, model: Model, like: DecodeState, segment: int, capacity: int, fixed: bool) -> None:
        self.rings = Rings(model, like, segment, capacity)
        # Kernels need whole buffers: they know no strides.
        self.fixed = fixed or decode_kernels.supports(self.rings.buffers[0])
        self.views: dict[int, Rings] = {capacity: self.rings}
        """The first n rows, by n"""

    def join(self, row: int, state: DecodeState) -> None:
        view = self.rings.rows(row, row + 1)
        for buffer in view.buffers:
            buffer.zero_()  # hidden slots are multiplied by zero, which does not hide a value that is not finite
        view.load(state)

    def take(self, row: int) -> DecodeState:
        return self.rings.rows(row, row + 1).state()

    def move(self, source: int, target: int) -> None:
        if source != target:
            self.rings.move(source, target)

    def feed(self, tokens: Tensor) -> Tensor:
        count = len(tokens)
        if count not in self.views:
            self.views[count] = self.rings.rows(0, count)
        return self.views[count].feed(tokens)

    def changed_tensors(self) -> tuple[Tensor, ...]:
        return self.rings.cursors


class GroupRows:
    """Rows at the same place of their segments are computed together."""

    fixed = False

    def __init__(self, model: Model, like: DecodeState, segment: int) -> None:
        self.layers = SegmentLayers(model, like.state, segment)
        self.groups: list[RowGroup] = []

    def join(self, row: int, state: DecodeState) -> None:
        group, count = self._open(state.state, [row]), int(state.count[0])
        group.reopen(state.open, count)
        same = [other for other in self.groups if other.count == count]
        self.groups = [other for other in self.groups if other.count != count]
        self.groups.append(self._merged([*same, group]))

    def _open(self, state: State, rows: list[int]) -> RowGroup:
        return RowGroup.empty(self.layers, state, rows)

    def _merged(self, groups: list[RowGroup]) -> RowGroup:
        if len(groups) == 1:
            return groups[0]
        states = tree_zip(_cat, *(group.state() for group in groups))
        opened = tree_zip(_cat, *(group.open_part(group.num_open) for group in groups))
        merged = self._open(states, [row for group in groups for row in group.rows])
        merged.reopen(opened, groups[0].count)
        return merged

    def take(self, row: int) -> DecodeState:
        group = next(group for group in self.groups if row in group.rows).choose([row])
        state = tree_map(lambda leaf: leaf, group.state())
        return DecodeState(state, group.open_part(group.num_open), torch.tensor([group.count]))

    def move(self, source: int, target: int) -> None:
        kept = []
        for group in self.groups:
            if target in group.rows:
                group = self._without(group, target)
            if group is not None:
                group.rows = [target if row == source else row for row in group.rows]
                kept.append(group)
        self.groups = kept

    def _without(self, group: RowGroup, row: int) -> RowGroup | None:
        rows = [other for other in group.rows if other != row]
        if not rows:
            return None
        chosen = group.choose(rows)
        chosen.rows = [rows[place] for place in chosen.rows]
        return chosen

    def feed(self, tokens: Tensor) -> Tensor:
        hidden = [(group.rows, group.feed(tokens[group.rows])) for group in self.groups]
        whole = hidden[0][1].new_empty(len(tokens), *hidden[0][1].shape[1:])
        for rows, part in hidden:
            whole[rows] = part
        return whole

    def changed_tensors(self) -> tuple[Tensor, ...]:
        return ()


def _cat(*parts: Tensor) -> Tensor:
    return torch.cat(parts)
