"""State, stage and decoder of Transformer-XL's memory; see the package for what it is.

Shapes: B batch, L segment, M memory slots, D model width, H heads, d head size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mnemo.memory.kv_buffer import SPARE, KeyValueCache, KeyValues, empty_keys
from mnemo.memory.protocol import (
    Extent,
    Layer,
    Scope,
    Segment,
    Stage,
    fit_slots,
    keep_newest,
    projection_work,
    remember,
)
from mnemo.memory.shared_steps import RowTensor, SharesSteps
from mnemo.memory.state import select
from mnemo.ops.rotary import rotate


class XLState(NamedTuple):
    hidden: Tensor
    """(B, M, D), newest last"""
    length: Tensor
    """(B,) valid slots, right-aligned"""


class XLStage(Stage):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Layer = layer  # type: ignore[assignment]

    def init(
        self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False
    ) -> XLState | KeyValueCache:
        valid = torch.full((batch,), length if full else 0, device=like.device)
        hidden = like.new_zeros(batch, length, like.shape[-1])
        state = XLState(hidden, valid)
        return self._project(state) if cached else state

    def _project(self, state: XLState) -> KeyValueCache:
        keys, values = self.layer.keys_values(state.hidden)
        return KeyValueCache(keys.contiguous(), values.contiguous(), state.length)

    def forward(
        self, x: Tensor, state: XLState | KeyValueCache, segment: Segment
    ) -> tuple[Tensor, XLState | KeyValueCache]:
        num_new, num_slots = x.shape[1], self.extent(state).slots
        length = (state.length + (num_new if segment.lengths is None else segment.lengths)).clamp(max=num_slots)
        scope = segment.scope(self.layer, num_slots, num_slots + num_new, state.length + num_new)
        if isinstance(state, XLState) and segment.lengths is None and self.layer.takes_joined(x, state.hidden):
            # The memory after the segment is a part of the joined rows, which the backward pass keeps anyway.
            joined = torch.cat([state.hidden, x.detach()], 1)
            return self.layer.output_after_joined(x, joined, scope), XLState(joined[:, num_new:], length)
        if isinstance(state, XLState):
            after = XLState(remember(state.hidden, x, segment.lengths), length)
            return self.layer.output_after(x, state.hidden, scope), after
        (keys, values), after = state.append(KeyValues(*self.layer.keys_values(x)), length)
        if segment.lengths is not None:
            newest = (num_slots, segment.lengths, num_new, 2)
            after = KeyValueCache(keep_newest(keys, *newest), keep_newest(values, *newest), length)
        context, _ = self.layer.attend(x, keys, values, scope)
        return self.layer.finish(x, context), after

    def extent(self, state: XLState | KeyValueCache) -> Extent:
        slots = state.hidden.shape[1] if isinstance(state, XLState) else state.keys.shape[2]
        return Extent(slots, filled=(state.length,))

    def resize(self, state: XLState | KeyValueCache, length: int) -> XLState | KeyValueCache:
        valid = state.length.clamp(max=length)
        if isinstance(state, XLState):
            return XLState(fit_slots(state.hidden, length, 1), valid)
        return KeyValueCache(fit_slots(state.keys, length, 2), fit_slots(state.values, length, 2), valid)

    def open(self, state: XLState | KeyValueCache, segment: int) -> OpenXL:
        return OpenXL(self.layer, self._project(state) if isinstance(state, XLState) else state, segment)

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        return 0 if cached else 2 * slots * projection_work(self.layer)


class RotatedKeys:
    """Keys of memory and open segment, rotated by their places, which change only when a segment is committed."""

    def __init__(self, like: Tensor, most_keys: int) -> None:
        batch, heads, _, size = like.shape
        self.buffer, self.filled = like.new_empty(batch, heads, most_keys, size), 0

    def of(self, keys: Tensor, num_new: int, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """All keys (B, H, K, d) rotated, of which the last `num_new` have not been rotated before."""
        new = slice(min(self.filled, keys.shape[2] - num_new), keys.shape[2])
        self.buffer[:, :, new] = rotate(keys[:, :, new], (rotary[0][new], rotary[1][new]))
        self.filled = keys.shape[2]
        return self.buffer[:, :, : self.filled]


class OpenXL(SharesSteps):
    """Buffers of the memory and of the open segment after it, with free slots for the segments that follow.

    When they are used up, the memory is copied to the beginning.
    """

    def __init__(self, layer: Layer, cache: KeyValueCache, segment: int) -> None:
        self.layer, self.segment, self.begin = layer, segment, 0
        self.num_slots = cache.keys.shape[2]
        slots = self.num_slots + segment + self.num_slots // SPARE
        shape = (*cache.keys.shape[:2], slots, cache.keys.shape[3])
        self.keys, self.values = empty_keys(cache.keys, slots).zero_(), cache.values.new_zeros(shape)
        self.keys[:, :, : self.num_slots] = cache.keys
        self.values[:, :, : self.num_slots] = cache.values
        self.length = cache.length.clone()
        self.rotated: RotatedKeys | None = None

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        num_keys = self.num_slots + count + x.shape[1]
        end = self.begin + num_keys
        new, all_keys = slice(end - x.shape[1], end), slice(self.begin, end)
        self.keys[:, :, new], self.values[:, :, new] = self.layer.keys_values(x)
        scope = segment.scope(self.layer, self.num_slots, num_keys, self.length + count + x.shape[1])
        keys, scope = self._with_rotation(self.keys[:, :, all_keys], x.shape[1], scope)
        context, _ = self.layer.attend(x, keys, self.values[:, :, all_keys], scope)
        return self.layer.finish(x, context)

    def _with_rotation(self, keys: Tensor, num_new: int, scope: Scope) -> tuple[Tensor, Scope]:
        """Rotated keys if there are rotary positions, of which only those of new tokens are computed."""
        rotary = scope.relation.to(keys.dtype).rotary
        if rotary is None:
            return keys, scope
        if self.rotated is None:
            self.rotated = RotatedKeys(keys, self.num_slots + self.segment)
        return self.rotated.of(keys, num_new, rotary), scope._replace(keys_rotated=True)

    def commit(self) -> None:
        self.rotated = None
        self.begin += self.segment
        end = self.begin + self.num_slots
        if end + self.segment > self.keys.shape[2]:
            for buffer in (self.keys, self.values):
                buffer[:, :, : self.num_slots] = buffer[:, :, self.begin : end].clone()
            self.begin = 0
        self.length = (self.length + self.segment).clamp(max=self.num_slots)

    def state(self) -> KeyValueCache:
        return KeyValueCache(*self._copy(0, self.num_slots), self.length.clone())

    def contents(self, length: int) -> KeyValues:
        return KeyValues(*self._copy(self.num_slots, self.num_slots + length))

    def _copy(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Slots of [memory ; segment], counted from the memory's first."""
        part = slice(self.begin + begin, self.begin + end)
        keys, values = self.keys[:, :, part], self.values[:, :, part]
        return keys.clone(memory_format=torch.contiguous_format), values.clone(memory_format=torch.contiguous_format)

    def restore(self, contents: KeyValues, count: int) -> None:
        self.rotated = None
        begin = self.begin + self.num_slots
        self.keys[:, :, begin : begin + count] = contents.keys[:, :, :count]
        self.values[:, :, begin : begin + count] = contents.values[:, :, :count]

    def row_tensors(self) -> Iterator[RowTensor]:
        for buffer in (self.keys, self.values):
            yield RowTensor(buffer[:, :, self.begin :], 2, self.num_slots)
        yield RowTensor(self.length, counts_memory=True)

    def window(self, begin: int) -> OpenXL:
        other = copy.copy(self)
        other.begin, other.rotated = begin, None
        return other

    def select(self, rows: Tensor) -> OpenXL:
        other, rows = copy.copy(self), rows.to(self.keys.device)
        other.keys, other.values, other.length = select((self.keys, self.values, self.length), rows)
        other.rotated = None
        return other
