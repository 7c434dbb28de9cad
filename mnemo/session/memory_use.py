"""How much of a memory is in use: slots filled of every layer, and tokens read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from mnemo.display import Shown, Summary, bar
from mnemo.inference.decoder import DecodeState
from mnemo.inference.generation import AnyState, TextState
from mnemo.memory.state import nbytes
from mnemo.model import Model
from mnemo.units import size_text


class LayerUse(NamedTuple):
    layer: int
    """From 1"""
    mechanism: str
    """Name of its class, such as XL"""
    long: bool
    filled: int
    slots: int


class GroupUse(NamedTuple):
    """Layers that are filled alike."""

    mechanism: str
    long: bool
    layers: int
    """Number of layers"""
    filled: int
    slots: int

    @property
    def share(self) -> float:
        return self.filled / self.slots if self.slots else 0.0


@dataclass(frozen=True, repr=False)
class MemoryUse(Shown):
    layers: tuple[LayerUse, ...]
    memory_tokens: int
    """Memory tokens that the next segment reads; 0 for a model without them, and before the first segment ends."""
    open: int
    """Tokens of the open segment, which are in no memory yet."""
    segment: int
    tokens: int
    """Tokens read and written so far."""
    nbytes: int
    on: bool = True
    """Whether anything is kept from one segment to the next."""

    def groups(self) -> tuple[GroupUse, ...]:
        """Layers of one mechanism, one range, and equally many slots and filled slots, in the order of the layers."""
        counts = Counter(layer[1:] for layer in self.layers if layer.slots)
        return tuple(
            GroupUse(mechanism, long, count, filled, slots)
            for (mechanism, long, filled, slots), count in counts.items()
        )

    def line(self) -> str:
        """The use of the memory on one line, for a terminal."""
        if not self.on:
            kept = ["off"]
        else:
            kept = [f"{_layers(group)} {bar(group.share)} {group.filled:,}/{group.slots:,}" for group in self.groups()]
            kept += [f"{self.memory_tokens} memory tokens"] if self.memory_tokens else []
        return (
            f"memory: {', '.join(kept) or 'none'}; segment {self.open:,}/{self.segment:,}; {self.tokens:,} tokens read"
        )

    def summary(self) -> Summary:
        facts = [
            (
                f"{_layers(group)}, {group.mechanism}",
                f"{bar(group.share, 20)} {group.filled:,} of {group.slots:,} slots",
            )
            for group in self.groups()
        ]
        facts += [("memory tokens", f"{self.memory_tokens:,}")] if self.memory_tokens else []
        facts += [
            ("open segment", f"{self.open:,} of {self.segment:,} tokens"),
            ("size", size_text(self.nbytes)),
        ]
        state = "" if self.on else " (memory off)"
        return Summary(f"memory of {self.tokens:,} tokens{state}", facts)


def _layers(group: GroupUse) -> str:
    return f"{group.layers} {'long' if group.long else 'short'} {'layer' if group.layers == 1 else 'layers'}"


def measure(model: Model, state: AnyState, segment: int, on: bool = True) -> MemoryUse:
    """The use of one row's memory."""
    opened = state.state if isinstance(state, TextState) else state
    committed, count = (opened.state, opened.count) if isinstance(opened, DecodeState) else (opened, None)
    config = model.config
    long, own = set(config.memory.long_layers(config.num_layers)), model.input_memory.own(committed)
    mechanisms = [type(memory).__name__ for memory in config.memory.memories(config.num_layers)]
    sizes = zip(mechanisms, model.filled_slots(committed), model.memory_lengths(committed), strict=True)
    return MemoryUse(
        layers=tuple(
            LayerUse(at + 1, mechanism, at in long, filled, slots)
            for at, (mechanism, filled, slots) in enumerate(sizes)
        ),
        memory_tokens=0 if own is None or config.tokens is None or not int(own.started[0]) else config.tokens.num,
        open=0 if count is None else int(count[0]),
        segment=segment,
        tokens=int(state.tokens[0]) if isinstance(state, TextState) else 0,
        nbytes=nbytes(state),
        on=on,
    )
