"""Projected keys and values of a memory, in buffers with free slots, so that a segment is appended without a copy.

The keys and values of M slots may be views of a larger buffer. The next segment's are written to the free slots after
them; the new memory is the view one segment further. A state carries its buffer. The first continuation of a state
takes the free slots; a second one finds them taken and copies the memory to a new buffer. A state therefore never
changes. Copies of a state, such as `mnemo.memory.state.select` makes, own their tensors and carry no buffer.

Shapes: B batch, H heads, M memory slots, L segment, d head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SPARE = 2
"""A buffer has free slots for a further 1 / SPARE of the memory, which is copied once in that many slots."""


class KeyValueBuffer:
    """Keys and values of a memory, followed by free slots."""

    def __init__(self, keys: Tensor, values: Tensor, spare: int) -> None:
        batch, heads, self.used, size = keys.shape
        length = self.used + spare
        self.keys, self.values = empty_keys(keys, length), values.new_empty(batch, heads, length, size)
        self.keys[:, :, : self.used], self.values[:, :, : self.used] = keys, values

    def has_room(self, end: int, count: int) -> bool:
        """Whether `count` slots from `end` on are free, and may be written in the present inference mode."""
        free = self.used == end and end + count <= self.keys.shape[2]
        return free and self.keys.is_inference() == torch.is_inference_mode_enabled()

    def view(self, begin: int, end: int) -> KeyValues:
        return KeyValues(self.keys[:, :, begin:end], self.values[:, :, begin:end])

    def write(self, begin: int, keys: Tensor, values: Tensor) -> int:
        """Fill the slots from `begin` on, and return their end."""
        end = begin + keys.shape[2]
        self.keys[:, :, begin:end], self.values[:, :, begin:end] = keys, values
        self.used = end
        return end


def empty_keys(like: Tensor, length: int) -> Tensor:
    """Uninitialised keys (B, H, length, d). On a CPU, neighbouring keys are contiguous: products with queries are then
    a third faster."""
    batch, heads, _, size = like.shape
    if like.device.type != "cpu":
        return like.new_empty(batch, heads, length, size)
    return like.new_empty(batch, heads, size, length).transpose(2, 3)


class KeyValues(NamedTuple):
    keys: Tensor
    values: Tensor
    """(B, H, T, d) each, oldest first"""


class _CacheLeaves(NamedTuple):
    keys: Tensor
    values: Tensor
    """(B, H, M, d) each, newest last"""
    length: Tensor
    """(B,) valid slots, right-aligned"""


class KeyValueCache(_CacheLeaves):
    """A memory as projected keys and values: the inference form of states whose weights do not change.

    `buffer` is not a leaf: functions on states make new tuples, without it.
    """

    buffer: KeyValueBuffer | None = None
    """The buffer that keys and values are views of; None if they own their storage."""
    end: int = 0
    """The slot of the buffer after the newest key."""

    @staticmethod
    def inside(buffer: KeyValueBuffer, begin: int, end: int, length: Tensor) -> KeyValueCache:
        """The memory in slots `begin` to `end` of a buffer."""
        cache = KeyValueCache(*buffer.view(begin, end), length)
        cache.buffer, cache.end = buffer, end
        return cache

    def append(self, new: KeyValues, length: Tensor) -> tuple[KeyValues, KeyValueCache]:
        """Keys and values (B, H, M + L, d) with those of a segment, and the newest M of them as the next memory.

        `length` (B,) are the valid slots of the next memory.
        """
        num_slots, num_new = self.keys.shape[2], new.keys.shape[2]
        if new.keys.requires_grad or self.keys.dtype != new.keys.dtype or torch.compiler.is_compiling():
            keys, values = torch.cat([self.keys, new.keys], 2), torch.cat([self.values, new.values], 2)
            newest = keys[:, :, num_new:].detach(), values[:, :, num_new:].detach()
            return KeyValues(keys, values), KeyValueCache(*newest, length)
        buffer, begin = self.buffer, self.end
        if buffer is None or not buffer.has_room(begin, num_new):
            buffer, begin = KeyValueBuffer(self.keys, self.values, num_new + num_slots // SPARE), num_slots
        end = buffer.write(begin, *new)
        return buffer.view(begin - num_slots, end), KeyValueCache.inside(buffer, end - num_slots, end, length)


class RewindingBuffer:
    """A memory's buffer for a runner that owns it and uses the same places again and again.

    At time t of `times`, the memory is the view after t segments, and the next segment fits after it.
    """

    def __init__(self, cache: KeyValueCache, segment: int, times: int) -> None:
        self.num_slots, self.segment, self.times = cache.keys.shape[2], segment, times
        self.buffer = KeyValueBuffer(cache.keys, cache.values, segment * times)

    def at(self, time: int, length: Tensor) -> KeyValueCache:
        """The memory at a time; all slots after it are free. `length` (B,): its valid slots."""
        begin, end = time * self.segment, time * self.segment + self.num_slots
        self.buffer.used = end
        return KeyValueCache.inside(self.buffer, begin, end, length)

    def rewind(self) -> None:
        """Move the memory of the last time to the beginning."""
        for part in (self.buffer.keys, self.buffer.values):
            part[:, :, : self.num_slots] = part[:, :, self.times * self.segment :].clone()
