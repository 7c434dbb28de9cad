"""Decoding for any stage: the open segment is read again, from the committed state, with every token.

Exact, and linear in the segment for each token: a first window for a new mechanism. Those whose memory stands still
within a segment have windows of their own, which keep keys and values instead and know block masks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.memory.protocol import Segment, Stage
from mnemo.memory.state import leaves, select, tree_map


class ReplayOpen(NamedTuple):
    rows: Tensor
    """(B, T, D): the open segment's inputs"""


class ReplayWindow:
    def __init__(self, stage: Stage, state: Any, segment: int, dim: int) -> None:
        like = next(leaf for _, leaf in leaves(state) if leaf.is_floating_point())
        self.stage, self.state, self.after = stage, state, state
        self.rows = like.new_zeros(len(like), segment, dim)

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        if segment.blocks is not None:
            raise MnemoError("this memory cannot be decoded between memory tokens: its segments are read again")
        end = count + x.shape[1]
        self.rows[:, count:end] = x
        out, self.after = self.stage(self.rows[:, :end], self.state, segment)
        return out[:, count:]

    def commit(self) -> None:
        self.state = self.after

    def close(self) -> Any:
        return tree_map(torch.clone, self.state)

    def open(self, length: int) -> ReplayOpen:
        return ReplayOpen(self.rows[:, :length].clone(memory_format=torch.contiguous_format))

    def reopen(self, opened: ReplayOpen, count: int) -> None:
        self.rows[:, :count] = opened.rows[:, :count]

    def select(self, rows: Tensor) -> ReplayWindow:
        rows = rows.to(self.rows.device)
        other = ReplayWindow(self.stage, select(self.state, rows), *self.rows.shape[1:])
        other.rows = self.rows.index_select(0, rows)
        return other
