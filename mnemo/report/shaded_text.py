"""A text whose tokens are shaded by what memory saves on them, and the passages where that is most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mnemo.analysis import Gain
from mnemo.report.markup import Markup, join, tag

EDGES = (0.25, 1.0, 2.0, 4.0)
"""Bits from which on a token's shade is the first, second ... one."""
MOST_SHOWN = 20_000
PASSAGE = {"byte": 80, "char": 80, "word": 16, "bpe": 24}
"""Tokens of a passage by unit."""
USUAL_PASSAGE = 24
MOST_PASSAGES = 6
FEWEST_BITS = 1.0
"""A passage on which memory saves less says nothing."""
FEWEST_SEGMENTS = 4
"""Before this many, nobody can say what is usual at a place of a segment."""
INVISIBLE = {"\0": "␀", "\r": "␍", "\t": "\t", "\n": "\n"}


class Passage(NamedTuple):
    begin: int
    """Its first token, as an index of the text's"""
    end: int
    bits: float
    """Saved in all"""
    unusual: float
    """Likewise, beyond what is usual at such places of a segment"""


def shade(bits: float) -> str | None:
    """`p1` ... `p4` where memory saves, `n1` ... `n4` where it harms."""
    level = sum(abs(bits) >= edge for edge in EDGES)
    return f"{'p' if bits > 0 else 'n'}{level}" if level else None


class _Token(NamedTuple):
    text: str
    css: str | None
    begins: int
    """The segment's number: another one begins a new piece"""


def shaded(pieces: Sequence[str], bits: np.ndarray, segment: int, first: int = 0) -> Markup:
    """Tokens from index `first` on; `bits` are the gains of the whole text's tokens but the first."""
    tokens = []
    for place, piece in enumerate(pieces, first):
        css = shade(float(bits[place - 1])) if place else None
        tokens.append(_Token(visible(piece), css, max(0, place - 1) // segment))
    parts = []
    for begins, members in groupby(tokens, key=lambda token: token.begins):
        if begins:
            parts.append(tag("i", class_="begin"))
        for css, run in groupby(members, key=lambda token: token.css):
            text = "".join(token.text for token in run)
            parts.append(tag("span", text, class_=css) if css else text)
    return join(parts)


def visible(text: str) -> str:
    """What a page can show: other control characters would be lost."""
    return "".join(
        INVISIBLE.get(letter, letter if letter.isprintable() or letter.isspace() else "�") for letter in text
    )


def legend() -> Markup:
    edges = [f"{low:g}-{high:g}" for low, high in zip(EDGES, EDGES[1:], strict=False)] + [f"over {EDGES[-1]:g}"]
    saves = [tag("span", f" {words} ", class_=f"p{level}") for level, words in enumerate(edges, 1)]
    harms = [tag("span", f" {words} ", class_=f"n{level}") for level, words in enumerate(edges, 1)]
    return tag("p", "Bits that memory saves: ", *saves, " or costs: ", *harms, class_="legend")


def passages(gain: Gain, unit: str) -> list[Passage]:
    """Stretches of text that do not overlap, with the most unusual gain first."""
    width = min(PASSAGE.get(unit, USUAL_PASSAGE), len(gain.gain))
    sums = np.convolve(unusual(gain), np.ones(width), "valid")
    chosen: list[Passage] = []
    while len(chosen) < MOST_PASSAGES and np.isfinite(sums).any():
        begin = int(np.nanargmax(sums))
        saved = float(gain.gain[begin : begin + width].sum() / np.log(2))
        if min(sums[begin] / np.log(2), saved) < FEWEST_BITS:
            break
        chosen.append(Passage(begin + 1, begin + 1 + width, saved, float(sums[begin] / np.log(2))))
        sums[max(0, begin - width + 1) : begin + width] = np.nan
    return chosen


def unusual(gain: Gain) -> np.ndarray:
    """The gain beyond its mean at the same position of other segments, where there are enough of them."""
    later = np.arange(len(gain.gain)) >= gain.segment
    if len(gain.gain) < (FEWEST_SEGMENTS + 1) * gain.segment:
        return np.where(later, gain.gain, 0.0)
    return np.where(later, gain.gain - gain.by_position()[np.arange(len(gain.gain)) % gain.segment], 0.0)


def draw_passage(passage: Passage, pieces: Sequence[str], bits: np.ndarray) -> Markup:
    width = passage.end - passage.begin
    before = tag("mark", visible("".join(pieces[max(0, passage.begin - width) : passage.begin])))
    inside = shaded(pieces[passage.begin : passage.end], bits, len(pieces), passage.begin)
    return tag(
        "article",
        tag("h3", f"{passage.bits:.1f} bits"),
        tag(
            "div",
            f"{passage.unusual:.1f} more than usual; tokens {passage.begin:,} to {passage.end - 1:,}",
            class_="links",
        ),
        tag("pre", before, inside, tabindex="0"),
        class_="card sample gains",
    )
