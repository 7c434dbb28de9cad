"""How a cached memory grows without being copied in every segment.

The keys and values of M slots may be views of larger buffers with free slots behind them, where the next segment's are
written; the new memory is the view one segment further. The first to come takes the free slots: a state that is
continued a second time finds them taken and moves to buffers of its own. So no state ever sees another one's writing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

SPARE = 2
"""Buffers have room for a further 1 / SPARE of the memory: it is copied once in so many slots."""


class _Buffers:
    def __init__(self, keys: Tensor, values: Tensor, spare: int) -> None:
        batch, heads, self.used, size = keys.shape
        length = self.used + spare
        self.keys, self.values = empty_keys(keys, length), values.new_empty(batch, heads, length, size)
        self.keys[:, :, : self.used], self.values[:, :, : self.used] = keys, values

    def has_room(self, end: int, count: int) -> bool:
        """Whether the slots from `end` on are free, and may be written to in the present mode."""
        free = self.used == end and end + count <= self.keys.shape[2]
        return free and self.keys.is_inference() == torch.is_inference_mode_enabled()


def empty_keys(like: Tensor, length: int) -> Tensor:
    """Room for so many keys, else of the same shape (B, H, T, d). On a CPU neighbouring keys are stored side by side:
    products with queries read them a third faster so."""
    batch, heads, _, size = like.shape
    if like.device.type != "cpu":
        return like.new_empty(batch, heads, length, size)
    return like.new_empty(batch, heads, size, length).transpose(2, 3)


class _Place(NamedTuple):
    """Where a view ends."""

    buffers: _Buffers
    end: int

    def has_room(self, values: Tensor, count: int) -> bool:
        """Whether these values stand beside the keys, and there is room behind both."""
        begin = self.end - values.shape[2]
        beside = values.data_ptr() == self.buffers.values[:, :, begin:].data_ptr()
        return beside and self.buffers.has_room(self.end, count)


_places = WeakTensorKeyDictionary()
"""The place of every living view of keys that `extend` gave."""


class Extended(NamedTuple):
    keys: Tensor
    values: Tensor
    """(B, H, M + L, d): the memory and behind it the segment"""
    newest_keys: Tensor
    newest_values: Tensor
    """(B, H, M, d): the memory after the segment"""


def extend(keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor) -> Extended:
    """Put a segment's (B, H, L, d) behind a memory's (B, H, M, d), which stay as they are."""
    num_slots, num_new = keys.shape[2], new_keys.shape[2]
    if new_keys.requires_grad or keys.dtype != new_keys.dtype or torch.compiler.is_compiling():
        keys, values = torch.cat([keys, new_keys], 2), torch.cat([values, new_values], 2)
        return Extended(keys, values, keys[:, :, num_new:].detach(), values[:, :, num_new:].detach())
    place = _places.get(keys)
    if place is None or not place.has_room(values, num_new):
        place = _Place(_Buffers(keys, values, num_new + num_slots // SPARE), num_slots)
    buffers, begin, end = place.buffers, place.end, place.end + num_new
    buffers.keys[:, :, begin:end], buffers.values[:, :, begin:end] = new_keys, new_values
    buffers.used = end
    everything, newest = slice(begin - num_slots, end), slice(end - num_slots, end)
    after = buffers.keys[:, :, newest]
    _places[after] = _Place(buffers, end)
    return Extended(
        buffers.keys[:, :, everything], buffers.values[:, :, everything], after, buffers.values[:, :, newest]
    )


class Room:
    """One memory's buffers for a private runner, which goes through the same places again and again.

    At time t of `times` the memory is the view that begins behind t segments, and the next segment fits behind it.
    """

    def __init__(self, keys: Tensor, values: Tensor, segment: int, times: int) -> None:
        self.num_slots, self.segment, self.times = keys.shape[2], segment, times
        self.buffers = _Buffers(keys, values, segment * times)

    def at(self, time: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory, (B, H, M, d) each; all that is behind them is free."""
        begin, end = time * self.segment, time * self.segment + self.num_slots
        keys, values = self.buffers.keys[:, :, begin:end], self.buffers.values[:, :, begin:end]
        self.buffers.used = end
        _places[keys] = _Place(self.buffers, end)
        return keys, values

    def rewind(self) -> None:
        """Move the memory of the last time to the beginning."""
        for buffer in (self.buffers.keys, self.buffers.values):
            buffer[:, :, : self.num_slots] = buffer[:, :, self.times * self.segment :].clone()
