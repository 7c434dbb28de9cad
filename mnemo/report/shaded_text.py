"""A text whose tokens are shaded by the bits that memory saves on them, and the passages with the largest savings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mnemo.analysis import Gain
from mnemo.units import bits

EDGES = (0.25, 1.0, 2.0, 4.0)
"""Bits at which the first, second ... shade begins."""
LEVELS = [*(f"{low:g}-{high:g}" for low, high in zip(EDGES, EDGES[1:], strict=False)), f"over {EDGES[-1]:g}"]
"""The ranges of bits of the shades, as text."""
MOST_SHOWN = 20_000
PASSAGE = {"byte": 80, "char": 80, "word": 16, "bpe": 24}
"""Tokens of a passage by unit."""
USUAL_PASSAGE = 24
MOST_PASSAGES = 6
FEWEST_BITS = 1.0
"""Passages on which memory saves less are not shown."""
FEWEST_SEGMENTS = 4
"""With fewer, the usual gain at a position of a segment is unknown."""
INVISIBLE = {"\0": "␀", "\r": "␍", "\t": "\t", "\n": "\n"}


class Passage(NamedTuple):
    begin: int
    """Index of its first token in the text."""
    end: int
    bits: float
    """Bits saved in total."""
    unusual: float
    """Bits saved beyond the mean at the same positions of other segments."""


class Piece(NamedTuple):
    """Neighbouring tokens of one shade in one segment."""

    text: str
    shade: str | None
    opens_segment: bool


def shade(saved: float) -> str | None:
    """`p1` ... `p4` for tokens that memory helps, `n1` ... `n4` for those that it harms, None for the rest."""
    level = sum(abs(saved) >= edge for edge in EDGES)
    return f"{'p' if saved > 0 else 'n'}{level}" if level else None


def shaded(texts: Sequence[str], saved: np.ndarray, segment: int, first: int = 0) -> list[Piece]:
    """Tokens from index `first` on; `saved` are the bits saved on all tokens of the text but the first."""
    tokens = []
    for place, text in enumerate(texts, first):
        kind = shade(float(saved[place - 1])) if place else None
        tokens.append(((max(0, place - 1) // segment, kind), visible(text)))
    pieces: list[Piece] = []
    last = 0
    for (number, kind), members in groupby(tokens, key=lambda token: token[0]):
        pieces.append(Piece("".join(text for _, text in members), kind, number > last))
        last = number
    return pieces


def visible(text: str) -> str:
    """The text with a symbol for each control character."""
    return "".join(
        INVISIBLE.get(letter, letter if letter.isprintable() or letter.isspace() else "�") for letter in text
    )


def passages(gain: Gain, unit: str) -> list[Passage]:
    """Passages that do not overlap, those with the most unusual gain first."""
    width = min(PASSAGE.get(unit, USUAL_PASSAGE), len(gain.gain))
    sums = np.convolve(unusual(gain), np.ones(width), "valid")
    chosen: list[Passage] = []
    while len(chosen) < MOST_PASSAGES and np.isfinite(sums).any():
        begin = int(np.nanargmax(sums))
        saved = bits(float(gain.gain[begin : begin + width].sum()))
        beyond = bits(float(sums[begin]))
        if min(beyond, saved) < FEWEST_BITS:
            break
        chosen.append(Passage(begin + 1, begin + 1 + width, saved, beyond))
        sums[max(0, begin - width + 1) : begin + width] = np.nan
    return chosen


def unusual(gain: Gain) -> np.ndarray:
    """The gain beyond the mean at the same position of other segments, if there are enough of them."""
    later = np.arange(len(gain.gain)) >= gain.segment
    if len(gain.gain) < (FEWEST_SEGMENTS + 1) * gain.segment:
        return np.where(later, gain.gain, 0.0)
    return np.where(later, gain.gain - gain.by_position()[np.arange(len(gain.gain)) % gain.segment], 0.0)


def passage_content(passage: Passage, texts: Sequence[str], saved: np.ndarray) -> dict[str, object]:
    """A passage for its template: heading, details, the text before it, its shaded tokens."""
    width = passage.end - passage.begin
    return {
        "heading": f"{passage.bits:.1f} bits",
        "details": f"{passage.unusual:.1f} more than usual; tokens {passage.begin:,} to {passage.end - 1:,}",
        "before": visible("".join(texts[max(0, passage.begin - width) : passage.begin])),
        "pieces": shaded(texts[passage.begin : passage.end], saved, len(texts), passage.begin),
    }
