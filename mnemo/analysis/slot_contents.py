"""The tokens that each layer's memory slots stand for.

Slots are filled in the order of the text: the newest slot of a layer holds its input at the last token of the last
complete segment. Tokens of the open segment are in no slot yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mnemo.inference.decoder import DecodeState
from mnemo.inference.generation import AnyState, TextState
from mnemo.memory.protocol import Extent
from mnemo.memory.state import nbytes
from mnemo.model import Model


class SlotRange(NamedTuple):
    """Slots that follow each other, and the tokens of the text that they stand for."""

    begin: int
    """Number of the first token, from 0"""
    end: int
    """Number of the token after the last"""
    slots: int
    rows: int
    """Tokens of one slot; more than 1 for compressed slots"""


@dataclass(frozen=True)
class LayerSlots:
    layer: int
    """From 1"""
    mechanism: str
    """Name of its class, such as XL"""
    long: bool
    slots: int
    """All slots, compressed ones included"""
    filled: int
    ranges: tuple[SlotRange, ...]
    """Filled slots, oldest first"""
    besides: str
    """Memory besides the slots, in words; empty if there is none"""


@dataclass(frozen=True)
class SlotContents:
    """Slots of every layer, and the tokens of the text that they stand for."""

    layers: tuple[LayerSlots, ...]
    tokens: int
    """Tokens read and written so far"""
    open: int
    """Tokens of the open segment"""
    exact: bool
    """False for a model with memory tokens, whose rows take slots as well: ranges then begin somewhat too early"""
    nbytes: int
    """Bytes of the memory, without the open segment: the same after every text"""


def slot_contents(model: Model, state: AnyState) -> SlotContents:
    """What fills the slots of one row's memory."""
    opened = state.state if isinstance(state, TextState) else state
    committed, count = (opened.state, int(opened.count[0])) if isinstance(opened, DecodeState) else (opened, 0)
    tokens = int(state.tokens[0]) if isinstance(state, TextState) else 0
    config = model.config
    long = set(config.memory.long_layers(config.num_layers))
    memories = config.memory.memories(config.num_layers)
    layers = tuple(
        LayerSlots(
            layer=at + 1,
            mechanism=type(memory).__name__,
            long=at in long,
            slots=extent.slots,
            filled=extent.filled_slots(0),
            ranges=_ranges(extent, tokens - count),
            besides=memory.traits.besides,
        )
        for at, (memory, extent) in enumerate(zip(memories, model.extents(committed), strict=True))
    )
    return SlotContents(layers, tokens, count, exact=config.tokens is None, nbytes=nbytes(committed))


def _ranges(extent: Extent, end: int) -> tuple[SlotRange, ...]:
    """`end`: tokens in complete segments. Rows that leave the slots are compressed in whole blocks."""
    newest, *older = [int(count[0]) for count in extent.filled] or [extent.length]
    ranges = [_range(end, newest, 1)]
    left = max(0, end - newest) // extent.further_rows * extent.further_rows
    ranges += [_range(left, slots, extent.further_rows) for slots in older]
    return tuple(each for each in reversed(ranges) if each.slots)


def _range(end: int, slots: int, rows: int) -> SlotRange:
    return SlotRange(max(0, end - slots * rows), end, slots, rows)
