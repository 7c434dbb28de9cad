"""Copying single rows into rings and out of them, each as one CUDA graph.

A copy consists of dozens of small kernels. Launched one by one from Python, they would take as long as a step of all
rows. The graphs work on the rings of one row, with tensors of fixed sizes on both sides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.inference.cuda_graph import RecordedFunction, shared_pool
from mnemo.inference.decoder import DecodeState
from mnemo.inference.ring_decoder import Rings, stack_pairs


class RingCopies:
    """`like`: a state of the size of the rings."""

    def __init__(self, rings: Rings, like: DecodeState) -> None:
        self.rings, self.one = rings, Rings(rings.model, like, rings.segment, batch=1)
        device = rings.places.device
        self.row = torch.zeros(1, dtype=torch.int64, device=device)
        self.arriving = [self._room(ring) for _, ring in self.one.stacks]
        """Memories and open tokens of a row, for each stack; tokens after the last open one are zeros"""
        pool = shared_pool(device)
        changed = [opened for _, opened in self.arriving]
        self._load = RecordedFunction(self._write_row, device, (*changed, *self.one.cursors), pool)
        self._unload = RecordedFunction(self._take_row, device, pool=pool)

    def _room(self, rings: Tensor) -> tuple[Tensor, Tensor]:
        num_slots = rings.shape[4] - self.rings.segment
        return torch.zeros_like(rings[:, :, :, :, :num_slots]), torch.zeros_like(rings[:, :, :, :, num_slots:])

    def load(self, row: int, state: DecodeState) -> None:
        """Replace a row by a state of one row."""
        self.row.fill_(row)
        self.one.counts.copy_(state.count)
        torch.stack([cache.length for cache in state.state], out=self.one.lengths)
        for (layers, _), (memory, opened) in zip(self.one.stacks, self.arriving, strict=True):
            stack_pairs(state.state, layers, out=memory.flatten(0, 1))
            new = stack_pairs(state.open, layers)
            opened[:, :, :, :, : new.shape[4]] = new
        self._load()

    def _write_row(self) -> Tensor:
        self.one.place(self.arriving)
        for target, source in self._pairs():
            target.index_copy_(2, self.row, source)
        for _, opened in self.arriving:
            opened.zero_()  # a shorter open segment may arrive next
        return self.row

    def state(self, row: int) -> DecodeState:
        """A copy of one row."""
        self.row.fill_(row)
        contents = self._unload()
        counts = self.one.counts[0].to("cpu", copy=True)
        num_open = int(counts)
        copies = [
            (keys.clone(), values.clone(), *(part[:, :, :, :num_open].clone() for part in opened))
            for keys, values, *opened in contents
        ]
        return self.one.unstacked(copies, self.one.lengths.clone(), counts)

    def _take_row(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        for source, target in self._pairs():
            target.copy_(source.index_select(2, self.row))
        return self.one.contents(self.rings.segment)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Tensors of all rows and of the single one, rows in their third dimension."""
        mine, single = ([*(stack.rings for stack in one.stacks), one.all_cursors] for one in (self.rings, self.one))
        return list(zip(mine, single, strict=True))
