"""Which layer keeps which memory (Rae & Razavi, 2020): a few long-range layers among short-range ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, Literal, get_args

from mnemo.config import forget_field_types
from mnemo.memory.associative import Associative
from mnemo.memory.compressive import Compressive
from mnemo.memory.configuration import Layerless
from mnemo.memory.infinite import Infinite
from mnemo.memory.lookahead import Lookahead
from mnemo.memory.memory_tokens import MemoryTokens, WriteTokens
from mnemo.memory.recurrent import LSTM, QRNN
from mnemo.memory.xl import XL

AnyMemory = XL | Lookahead | Compressive | Infinite | LSTM | QRNN | Associative
"""Every mechanism that a plan may name; `mnemo.memory.own` adds those of the user."""
BUILT_IN: tuple[type, ...] = get_args(AnyMemory)
AnyInputMemory = MemoryTokens | WriteTokens
"""Every mechanism that a model may have at its input."""


def set_mechanisms(*kinds: Any) -> None:
    """Replace the union that the types of a plan's fields refer to, by which files and the command line find kinds."""
    globals()["AnyMemory"] = reduce(or_, kinds)
    forget_field_types()


Arrangement = Literal["interleaved", "first", "last", "middle"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Memory of every layer: some layers are long-range, the others short-range."""

    long: AnyMemory = field(default_factory=XL)
    """The long-range layers' memory."""
    short: AnyMemory = field(default_factory=lambda: XL(length=128))
    """The other layers' memory."""
    num_long: int | None = None
    """Number of long-range layers; all if left out."""
    arrangement: Arrangement = "interleaved"
    """Which layers are long-range."""

    def __post_init__(self) -> None:
        if self.num_long is not None and self.num_long < 0:
            raise ValueError(f"{self.num_long} long-range layers")

    def long_layers(self, num_layers: int) -> tuple[int, ...]:
        """Indices (from 0) of the long-range layers of a model with `num_layers`."""
        count = num_layers if self.num_long is None else self.num_long
        if count > num_layers:
            raise ValueError(f"{count} long-range layers, but the model has {num_layers}")
        if self.arrangement == "interleaved":
            return tuple(-(-i * num_layers // count) - 1 for i in range(1, count + 1))
        starts = {"first": 0, "last": num_layers - count, "middle": (num_layers - count) // 2}
        begin = starts[self.arrangement]
        return tuple(range(begin, begin + count))

    def published(self) -> Plan:
        """The same plan with the quirks of its memories' published code."""
        return replace(self, long=self.long.published(), short=self.short.published())

    def on_shapes(self) -> Plan:
        """A plan of about the same cost that can run on tensors without storage.

        Memories whose work depends on the data become Transformer-XL memories with as many slots.
        """

        def stand_in(memory: AnyMemory) -> AnyMemory:
            slots = memory.traits.stand_in_slots
            return memory if slots is None else XL(length=slots)

        return replace(self, long=stand_in(self.long), short=stand_in(self.short))

    def memories(self, num_layers: int) -> tuple[AnyMemory, ...]:
        """The memory of every layer."""
        long = set(self.long_layers(num_layers))
        return tuple(self.long if i in long else self.short for i in range(num_layers))

    def attending(self, num_layers: int) -> tuple[int, ...]:
        """Indices of the layers that attend; the others are recurrent."""
        memories = self.memories(num_layers)
        return tuple(index for index, memory in enumerate(memories) if not isinstance(memory, Layerless))

    def lengths(self, num_layers: int, long: int | Sequence[int] | None = None) -> tuple[int, ...]:
        """Every layer's memory length; `long` replaces those of the long-range layers, a sequence those of all."""
        if long is not None and not isinstance(long, int):
            if len(long) != num_layers:
                raise ValueError(f"{len(long)} memory lengths for {num_layers} layers")
            return tuple(long)
        if long is None or isinstance(self.long, Layerless):
            plan = self
        else:
            plan = replace(self, long=replace(self.long, length=long))
        return tuple(memory.length for memory in plan.memories(num_layers))

    def long_length(self, lengths: Sequence[int]) -> int:
        """Of every layer's memory lengths, that of the long-range layers; the largest if there are none."""
        long = self.long_layers(len(lengths))
        return lengths[long[0]] if long else max(lengths)
