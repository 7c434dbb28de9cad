"""Decoding for any stage: with every token, the open segment is computed again from the committed memory.

Exact, but the work of a token grows with the segment: a first decoder for a new mechanism. Mechanisms whose memory does
not change within a segment have their own, which keep keys and values instead and support block masks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.memory.protocol import Segment, Stage
from mnemo.memory.state import leaves, select, tree_map
from mnemo.ops import Blocks


class ReplayContents(NamedTuple):
    rows: Tensor
    """(B, T, D): inputs of the open segment"""


class ReplayedSegment:
    """Decoder of an open segment for any stage: it computes the whole segment again at every token."""

    def __init__(self, stage: Stage, state: Any, segment: int, dim: int) -> None:
        like = next(leaf for _, leaf in leaves(state) if leaf.is_floating_point())
        self.stage, self.memory, self.after = stage, state, state
        self.rows = like.new_zeros(len(like), segment, dim)

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        if isinstance(segment.row_mask, Blocks):
            raise MnemoError("this memory cannot be decoded between memory tokens: its decoder has no block masks")
        end = count + x.shape[1]
        self.rows[:, count:end] = x
        out, self.after = self.stage(self.rows[:, :end], self.memory, segment)
        return out[:, count:]

    def commit(self) -> None:
        self.memory = self.after

    def state(self) -> Any:
        return tree_map(torch.clone, self.memory)

    def contents(self, length: int) -> ReplayContents:
        return ReplayContents(self.rows[:, :length].clone(memory_format=torch.contiguous_format))

    def restore(self, contents: ReplayContents, count: int) -> None:
        self.rows[:, :count] = contents.rows[:, :count]

    def select(self, rows: Tensor) -> ReplayedSegment:
        rows = rows.to(self.rows.device)
        other = ReplayedSegment(self.stage, select(self.memory, rows), *self.rows.shape[1:])
        other.rows = self.rows.index_select(0, rows)
        return other
