"""Transformer-XL's memory (Dai et al., 2019): a layer keeps its last M inputs and attends to them as a constant.

Training keeps the inputs themselves, because the weights that project them change. Inference keeps their projected
keys and values, which do not: equal numbers, a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mnemo.memory.protocol import Layer, Scope, Segment, keep_newest


@dataclass(frozen=True, kw_only=True)
class XL:
    length: int = 512
    """Slots of memory of each layer; 0 for none."""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"memory length {self.length} is negative")

    @property
    def grouped(self) -> bool:
        return False

    def check(self, model: Any) -> None:
        pass

    def stage(self, layers: Sequence[nn.Module]) -> nn.Module:
        (layer,) = layers
        return XLStage(layer)


class XLState(NamedTuple):
    hidden: Tensor
    """(B, M, D), newest last"""
    length: Tensor
    """(B,) valid slots, right-aligned"""


class XLCache(NamedTuple):
    keys: Tensor
    values: Tensor
    """(B, H, M, d) each, newest last"""
    length: Tensor


class XLStage(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Layer = layer  # type: ignore[assignment]

    def init(
        self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False
    ) -> XLState | XLCache:
        valid = torch.full((batch,), length if full else 0, device=like.device)
        hidden = like.new_zeros(batch, length, like.shape[-1])
        state = XLState(hidden, valid)
        return self._project(state) if cached else state

    def _project(self, state: XLState) -> XLCache:
        keys, values = self.layer.keys_values(state.hidden)
        return XLCache(keys.contiguous(), values.contiguous(), state.length)

    def forward(self, x: Tensor, state: XLState | XLCache, segment: Segment) -> tuple[Tensor, XLState | XLCache]:
        num_new, num_slots = x.shape[1], self.slots(state)
        if isinstance(state, XLState):
            rows = torch.cat([state.hidden, x], 1)
            keys, values = self.layer.keys_values(rows)
        else:
            rows = None
            new_keys, new_values = self.layer.keys_values(x)
            keys = torch.cat([state.keys, new_keys], 2)
            values = torch.cat([state.values, new_values], 2)
        relation = segment.relation(self.layer, num_slots + num_new, segment.ahead)
        scope = Scope(relation, segment.mask(num_slots), state.length + num_new, record=segment.record)
        context, _ = self.layer.attend(x, keys, values, scope)
        used = num_new if segment.lengths is None else segment.lengths
        length = (state.length + used).clamp(max=num_slots)
        if rows is not None:
            after = XLState(keep_newest(rows, num_slots, segment.lengths, num_new, 1), length)
        else:
            after = XLCache(
                keep_newest(keys, num_slots, segment.lengths, num_new, 2),
                keep_newest(values, num_slots, segment.lengths, num_new, 2),
                length,
            )
        return self.layer.finish(x, context), after

    def slots(self, state: XLState | XLCache) -> int:
        return state.hidden.shape[1] if isinstance(state, XLState) else state.keys.shape[2]

    def ahead(self, state: XLState | XLCache) -> int:
        return 0

    def resize(self, state: XLState | XLCache, length: int) -> XLState | XLCache:
        valid = state.length.clamp(max=length)
        if isinstance(state, XLState):
            return XLState(_resize(state.hidden, length, 1), valid)
        return XLCache(_resize(state.keys, length, 2), _resize(state.values, length, 2), valid)

    def window(self, state: XLState | XLCache, segment: int) -> XLWindow:
        return XLWindow(self.layer, self._project(state) if isinstance(state, XLState) else state, segment)


def _resize(rows: Tensor, length: int, dim: int) -> Tensor:
    have = rows.shape[dim]
    if have >= length:
        return rows.narrow(dim, have - length, length).contiguous()
    shape = list(rows.shape)
    shape[dim] = length - have
    return torch.cat([rows.new_zeros(shape), rows], dim)


class XLOpen(NamedTuple):
    keys: Tensor
    values: Tensor
    """(B, H, T, d) each: the open segment's, oldest first"""


class XLWindow:
    """Buffers of M + L slots: the memory, then the open segment."""

    def __init__(self, layer: Layer, cache: XLCache, segment: int) -> None:
        self.layer, self.segment = layer, segment
        self.num_slots = cache.keys.shape[2]
        shape = (*cache.keys.shape[:2], self.num_slots + segment, cache.keys.shape[3])
        self.keys, self.values = cache.keys.new_zeros(shape), cache.values.new_zeros(shape)
        self.keys[:, :, : self.num_slots] = cache.keys
        self.values[:, :, : self.num_slots] = cache.values
        self.length = cache.length.clone()

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        begin = self.num_slots + count
        end = begin + x.shape[1]
        self.keys[:, :, begin:end], self.values[:, :, begin:end] = self.layer.keys_values(x)
        relation = segment.relation(self.layer, end, segment.ahead)
        scope = Scope(relation, segment.mask(self.num_slots), self.length + count + x.shape[1])
        context, _ = self.layer.attend(x, self.keys[:, :, :end], self.values[:, :, :end], scope)
        return self.layer.finish(x, context)

    def commit(self) -> None:
        for buffer in (self.keys, self.values):
            buffer[:, :, : self.num_slots] = buffer[:, :, self.segment :].clone()
        self.length = (self.length + self.segment).clamp(max=self.num_slots)

    def close(self) -> XLCache:
        keys, values = self.keys[:, :, : self.num_slots], self.values[:, :, : self.num_slots]
        return XLCache(
            keys.clone(memory_format=torch.contiguous_format),
            values.clone(memory_format=torch.contiguous_format),
            self.length.clone(),
        )

    def open(self, length: int) -> XLOpen:
        return XLOpen(*self._copy(self.num_slots, self.num_slots + length))

    def _copy(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[:, :, begin:end], self.values[:, :, begin:end]
        return keys.contiguous().clone(), values.contiguous().clone()

    def reopen(self, opened: XLOpen, count: int) -> None:
        end = self.num_slots + count
        self.keys[:, :, self.num_slots : end] = opened.keys[:, :, :count]
        self.values[:, :, self.num_slots : end] = opened.values[:, :, :count]

    def select(self, rows: Tensor) -> XLWindow:
        rows = rows.to(self.keys.device)
        other = object.__new__(XLWindow)
        other.layer, other.segment, other.num_slots = self.layer, self.segment, self.num_slots
        other.keys, other.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        other.length = self.length.index_select(0, rows)
        return other
