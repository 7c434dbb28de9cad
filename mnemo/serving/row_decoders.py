"""Decoders of texts that are written together, each at its own place of its segment; texts join and leave one by one.

The texts are rows 0 ... n - 1. `RingRows` keeps all rows in ring buffers, for models whose layers all keep
Transformer-XL's memory. `SegmentRows` works for every memory.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mnemo.inference.decoder import DecodeState
from mnemo.inference.ring_copies import RingCopies
from mnemo.inference.ring_decoder import Rings, suits
from mnemo.inference.row_group import RowGroup, SegmentLayers
from mnemo.inference.shared_rows import SharedRows, can_share
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model
from mnemo.ops.cuda import decode_kernels

Layout = tuple[tuple[tuple[int, ...], str], ...]
"""Shapes and types of a state without its batch dimension: states of the same layout are computed together."""


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
    if suits(model.config):
        return RingRows(model, like, segment, capacity, fixed)
    return SegmentRows(model, like, segment, capacity, fixed)


class RingRows:
    def __init__(self, model: Model, like: DecodeState, segment: int, capacity: int, fixed: bool) -> None:
        self.rings = Rings(model, like, segment, capacity)
        # Kernels need whole buffers: they know no strides.
        self.fixed = fixed or decode_kernels.supports(self.rings.buffers[0])
        self.views: dict[int, Rings] = {capacity: self.rings}
        """The first n rows, by n"""
        self.copies = RingCopies(self.rings, like) if model.device.type == "cuda" else None

    def join(self, row: int, state: DecodeState) -> None:
        if self.copies is not None:
            self.copies.load(row, state)
            return
        view = self.rings.rows(row, row + 1)
        view.clear()  # hidden slots are multiplied by zero, which does not hide a value that is not finite
        view.load(state)

    def take(self, row: int) -> DecodeState:
        return self.rings.rows(row, row + 1).state() if self.copies is None else self.copies.state(row)

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


class SegmentRows:
    """Decodes every memory.

    Rows inside their segments share a step. Segments' first and last tokens, which refresh and write memories, are
    computed in groups of rows at the same place: one group for each row if `fixed`, so that the numbers do not depend
    on other rows. Memories that cannot share steps are always computed in groups.
    """

    def __init__(self, model: Model, like: DecodeState, segment: int, capacity: int, fixed: bool) -> None:
        self.layers, self.like, self.capacity, self.fixed = (
            SegmentLayers(model, like.state, segment),
            like.state,
            capacity,
            fixed,
        )
        self.groups: list[RowGroup] = []
        self.counts: dict[int, int] = {}
        """Open tokens of the rows that share steps"""
        can = can_share(self.layers, like.state)
        self.shared = SharedRows(self.layers, like.state, capacity if fixed else 1) if can else None

    def join(self, row: int, state: DecodeState) -> None:
        group = self._open(state.state, [row])
        group.reopen(state.open, int(state.count[0]))
        self._sort_in(group)

    def _open(self, state: State, rows: list[int]) -> RowGroup:
        return RowGroup.empty(self.layers, state, rows)

    def _sort_in(self, group: RowGroup) -> None:
        """Move the rows of a group to the shared ones if they are inside their segments."""
        if self.shared is not None and 0 < group.count < self.layers.segment - 1:
            for index, row in enumerate(group.rows):
                self._room_for(row).insert(row, group, index)
                self.counts[row] = group.count
            return
        self.groups.append(group)

    def _room_for(self, row: int) -> SharedRows:
        """The shared rows, with buffers for row `row`, which grow by powers of two."""
        assert self.shared is not None
        if row >= self.shared.capacity:
            self._resize(min(self.capacity, 1 << row.bit_length()))
        return self.shared

    def _resize(self, capacity: int) -> None:
        before = self.shared
        assert before is not None
        self.shared = SharedRows(self.layers, self.like, capacity)
        for row, count in self.counts.items():
            self.shared.copy_from(before, row, row, count)

    def _by_count(self, groups: list[RowGroup]) -> list[RowGroup]:
        """One group for each number of open tokens."""
        counts = sorted({group.count for group in groups})
        return [RowGroup.merged([group for group in groups if group.count == count]) for count in counts]

    def take(self, row: int) -> DecodeState:
        if row in self.counts:
            assert self.shared is not None
            group = self.shared.extract([row], self.counts[row])
        else:
            group = next(group for group in self.groups if row in group.rows).choose([row])
        return state_of(group)

    def move(self, source: int, target: int) -> None:
        self.counts.pop(target, None)
        self.groups = [kept for group in self.groups if (kept := _without(group, target)) is not None]
        if source in self.counts:
            assert self.shared is not None
            self.shared.copy_from(self.shared, source, target, self.counts[source])
            self.counts[target] = self.counts.pop(source)
        for group in self.groups:
            group.rows = [target if row == source else row for row in group.rows]
        if self.shared is not None and not self.fixed and max(self.counts, default=0) < self.shared.capacity // 4:
            self._resize(self.shared.capacity // 2)

    def feed(self, tokens: Tensor) -> Tensor:
        groups, self.groups = self.groups, []
        whole = self._feed_shared(tokens)
        for group in groups if self.fixed else self._by_count(groups):
            hidden = group.feed(tokens[group.rows])
            whole = hidden.new_zeros(len(tokens), *hidden.shape[1:]) if whole is None else whole
            whole[group.rows] = hidden
            self._sort_in(group)
        assert whole is not None
        return whole

    def _feed_shared(self, tokens: Tensor) -> Tensor | None:
        """The outputs of the rows that share steps; other rows hold no results."""
        if self.shared is None or not self.counts:
            return None
        counts = [self.counts.get(row, 0) for row in range(len(tokens))]
        hidden = self.shared.feed(tokens[: self.shared.capacity], counts[: self.shared.capacity])
        self.counts = {row: count + 1 for row, count in self.counts.items()}
        self._leave_shared()
        return torch.cat([hidden, hidden.new_zeros(len(tokens) - len(hidden), *hidden.shape[1:])])

    def _leave_shared(self) -> None:
        """Move rows before the last token of their segments to a group."""
        assert self.shared is not None
        last = self.layers.segment - 1
        rows = [row for row, count in self.counts.items() if count == last]
        for part in [[row] for row in rows] if self.fixed else [rows] if rows else []:
            self.groups.append(self.shared.extract(part, last))
        for row in rows:
            del self.counts[row]

    def changed_tensors(self) -> tuple[Tensor, ...]:
        return ()


def _without(group: RowGroup, row: int) -> RowGroup | None:
    """A group without one of its rows; None if no other row is in it."""
    rows = [other for other in group.rows if other != row]
    if len(rows) == len(group.rows):
        return group
    if not rows:
        return None
    chosen = group.choose(rows)
    chosen.rows = [rows[place] for place in chosen.rows]
    return chosen


def state_of(group: RowGroup) -> DecodeState:
    """A copy of the state of a group of one row."""
    state = tree_map(Tensor.clone, group.state())
    return DecodeState(state, group.open_part(group.num_open), torch.tensor([group.count]))


def layout_of(state: State) -> Layout:
    return tuple((tuple(leaf.shape[1:]), str(leaf.dtype)) for _, leaf in leaves(state))
