"""Decoding inside a segment: the committed state plus an open segment that is filled token by token.

A decoded segment equals the same segment computed in parallel. A full segment is committed to the memory. Decoders own
buffers that they change in place; the states that they take and return are copies.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError, require_positive
from mnemo.inference.row_group import RowGroup, SegmentLayers
from mnemo.memory.state import State, leaves, select, tree_map, tree_zip

if TYPE_CHECKING:
    from mnemo.model import Model, Output


class DecodeState(NamedTuple):
    """State of a text while its last segment is still open."""

    state: State
    """The committed state, without the open segment"""
    open: tuple[Any, ...]
    """The open segment in each stage. Time axes are as long as the longest open segment of any row, its read block of
    memory tokens included"""
    count: Tensor
    """(B,) tokens in the open segment"""


class Decoder:
    """Decodes any model. Rows with equally long open segments are computed together, as one group."""

    def __init__(self, model: Model, state: State | DecodeState, segment: int) -> None:
        require_positive("segment length", segment)
        self.model = model
        with torch.no_grad():
            if isinstance(state, DecodeState):
                layers = SegmentLayers(model, state.state, segment)
                self.groups = _reopened_groups(layers, state)
            else:
                layers = SegmentLayers(model, state, segment)
                self.groups = [RowGroup.empty(layers, state, list(range(_batch(state))))]

    @property
    def batch(self) -> int:
        return sum(len(group.rows) for group in self.groups)

    @torch.no_grad()
    def feed(self, tokens: Tensor, lengths: Sequence[int] | None = None) -> Output:
        """Read tokens (B, T), of which row b uses the first lengths[b]; return the outputs of all tokens used."""
        self.model.check_tokens(tokens)
        if lengths is None:
            lengths = [tokens.shape[1]] * len(tokens)
        self.groups = [part for group in self.groups for part in group.split(lengths)]
        fed = [group for group in self.groups if lengths[group.rows[0]]]
        if not fed:
            raise MnemoError("no tokens to read")
        hidden = [group.feed(tokens[group.rows, : lengths[group.rows[0]]]) for group in fed]
        return self.model.finish(_side_by_side([group.rows for group in fed], hidden, tokens.shape))

    def feed_single(self, tokens: Tensor) -> Output:
        """Read one token (B, 1) of every row."""
        return self.feed(tokens)

    def changed_tensors(self) -> tuple[Tensor, ...]:
        """Tensors that `feed_single` changes in place; none: it cannot be recorded as a CUDA graph."""
        return ()

    def state(self) -> DecodeState:
        """Return a copy of everything that the next token depends on."""
        longest = max(group.num_open for group in self.groups)
        committed = _joined([group.state() for group in self.groups])
        opened = _joined([group.open_part(longest) for group in self.groups])
        counts = torch.tensor([group.count for group in self.groups for _ in group.rows])
        order = torch.tensor([row for group in self.groups for row in group.rows]).argsort()
        there = order.to(next(leaves(committed))[1].device)
        return DecodeState(select(committed, there), select(opened, there), counts[order])

    def select(self, rows: Tensor) -> Decoder:
        """Return a decoder of the given rows, which may repeat: several continuations of one memory."""
        wanted, other = rows.tolist(), copy.copy(self)
        other.groups = [group.choose(wanted) for group in self.groups if not set(wanted).isdisjoint(group.rows)]
        return other


def _reopened_groups(layers: SegmentLayers, opened: DecodeState) -> list[RowGroup]:
    """One group for each length of the open segments."""
    counts: list[int] = opened.count.tolist()
    if max(counts) >= layers.segment:
        raise MnemoError(f"{max(counts)} open tokens do not fit a segment of {layers.segment}")
    device = next(leaves(opened.state))[1].device
    groups = []
    for count in sorted(set(counts)):
        rows = [row for row, row_count in enumerate(counts) if row_count == count]
        index = torch.tensor(rows, device=device)
        group = RowGroup.empty(layers, select(opened.state, index), rows)
        group.reopen(select(opened.open, index), count)
        groups.append(group)
    return groups


def _side_by_side(rows: list[list[int]], hidden: list[Tensor], shape: torch.Size) -> Tensor:
    """(B, T, D) from the outputs of groups of rows; zero where a row has no token."""
    if hidden[0].shape[:2] == shape:
        return hidden[0]
    whole = hidden[0].new_zeros(*shape, hidden[0].shape[-1])
    for places, part in zip(rows, hidden, strict=True):
        whole[places, : part.shape[1]] = part
    return whole


def _joined(trees: list[Any]) -> Any:
    if len(trees) == 1:
        return tree_map(lambda leaf: leaf, trees[0])
    return tree_zip(lambda *parts: torch.cat(parts), *trees)


def _batch(state: State) -> int:
    return next(leaves(state))[1].shape[0]
