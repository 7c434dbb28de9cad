"""Measure how often a text repeats itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mnemo.errors import MnemoError


def repetition(items: Sequence[Hashable], n: int = 4) -> float:
    """Return the share of n-grams that occurred earlier in the text: near 1 in a loop, 0 for shorter texts."""
    if n < 1:
        raise MnemoError(f"the length of n-grams must be positive, not {n}")
    grams = [tuple(items[begin : begin + n]) for begin in range(len(items) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition_of_text(text: str, n: int = 4) -> float:
    """Return the same for the words of a text, separated by white space."""
    return repetition(text.split(), n)
