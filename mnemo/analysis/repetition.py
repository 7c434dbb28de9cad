"""How often a text repeats itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mnemo.errors import MnemoError


def repetition(items: Sequence[Hashable], n: int = 4) -> float:
    """Share of the n-grams that have occurred before: 0 where none has, near 1 in a loop; 0 for shorter texts."""
    if n < 1:
        raise MnemoError(f"n-grams of {n} items must be positive")
    grams = [tuple(items[begin : begin + n]) for begin in range(len(items) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition_of_text(text: str, n: int = 4) -> float:
    """The same of a text's words, which white space separates."""
    return repetition(text.split(), n)
