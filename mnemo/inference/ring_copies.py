"""Copying single rows into rings and out of them, each as one CUDA graph.

A copy consists of hundreds of small kernels. Launched one by one from Python, they would take longer than several steps
of all rows. The graphs work on the rings of one row, with tensors of fixed sizes on both sides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.inference.cuda_graph import RecordedFunction, shared_pool
from mnemo.inference.decoder import DecodeState
from mnemo.inference.ring_decoder import Rings
from mnemo.memory.kv_buffer import KeyValueCache, KeyValues
from mnemo.memory.state import State, leaves, tree_map


class RingCopies:
    """`like`: a state of the size of the rings."""

    def __init__(self, rings: Rings, like: DecodeState) -> None:
        self.rings, self.one = rings, Rings(rings.model, like, rings.segment, batch=1)
        device = rings.places.device
        self.row = torch.zeros(1, dtype=torch.int64, device=device)
        self.arriving = self._empty_state(like.state)
        pool = shared_pool(device)
        emptied = [leaf for _, leaf in leaves(self.arriving.open)]
        self._load = RecordedFunction(self._write_row, device, emptied, pool)
        self._unload = RecordedFunction(self._take_row, device, pool=pool)

    def _empty_state(self, like: State) -> DecodeState:
        """A state of one row whose open segment has room for all tokens."""
        state = tree_map(lambda leaf: torch.zeros_like(leaf[:1]), like)
        shapes = [(*cache.keys.shape[:2], self.rings.segment, cache.keys.shape[3]) for cache in state]
        opened = [cache.keys.new_zeros(shape) for cache, shape in zip(state, shapes, strict=True)]
        pairs = tuple(KeyValues(keys, torch.zeros_like(keys)) for keys in opened)
        return DecodeState(state, pairs, torch.zeros(1, dtype=torch.int64, device=self.row.device))

    def load(self, row: int, state: DecodeState) -> None:
        """Replace a row by a state of one row."""
        self.row.fill_(row)
        num_open = state.open[0].keys.shape[2]
        opened = [target[:, :, :num_open] for _, target in leaves(self.arriving.open)]
        targets = [*(target for _, target in leaves(self.arriving.state)), *opened]
        _copy_all(targets, [source for _, source in leaves((state.state, state.open))])
        self.arriving.count.copy_(state.count)
        self._load()

    def _write_row(self) -> Tensor:
        self.one.load(self.arriving)
        for target, source in self._pairs():
            target.index_copy_(1, self.row, source)
        for _, leaf in leaves(self.arriving.open):
            leaf.zero_()  # a shorter open segment may arrive next
        return self.row

    def state(self, row: int) -> DecodeState:
        """A copy of one row."""
        self.row.fill_(row)
        caches, opened = self._unload()
        count = self.one.counts[0].to("cpu", copy=True)
        num_open = int(count)
        opened = tuple(KeyValues(*(part[:, :, :num_open] for part in pair)) for pair in opened)
        copied = DecodeState(*tree_map(lambda leaf: leaf.new_empty(leaf.shape), (caches, opened)), count=count)
        targets = [leaf for _, leaf in leaves((copied.state, copied.open))]
        _copy_all(targets, [leaf for _, leaf in leaves((caches, opened))])
        return copied

    def _take_row(self) -> tuple[tuple[KeyValueCache, ...], tuple[KeyValues, ...]]:
        for source, target in self._pairs():
            target.copy_(source.index_select(1, self.row))
        return self.one.contents(self.rings.segment)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Tensors of all rows and of the single one."""
        mine, single = (*self.rings.buffers, *self.rings.cursors), (*self.one.buffers, *self.one.cursors)
        return list(zip(mine, single, strict=True))


def _copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors with one call for each type; tensors that lie in one piece take one kernel together."""
    for dtype in {target.dtype for target in targets}:
        pairs = [(target, source) for target, source in zip(targets, sources, strict=True) if target.dtype == dtype]
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))  # type: ignore[attr-defined]
