"""Measure how often a text repeats itself, and find what it repeats."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from mnemo.errors import MnemoError

LARGEST_NAME = 2**31
"""Numbers of pieces from which those of twice the length can be computed in 63 bits."""


def repetition(items: Sequence[Hashable], n: int = 4) -> float:
    """Return the share of n-grams that occurred earlier in the text: near 1 in a loop, 0 for shorter texts."""
    if n < 1:
        raise MnemoError(f"the length of n-grams must be positive, not {n}")
    grams = [tuple(items[begin : begin + n]) for begin in range(len(items) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class Earlier(NamedTuple):
    """For every token of a text (T,), the last earlier place where the same tokens end."""

    distance: np.ndarray
    """Tokens back to that place; 0 if there is none."""
    length: np.ndarray
    """Equal tokens up to here that were compared: the largest power of two for which there is such a place."""


def earlier_occurrences(ids: np.ndarray, shortest: int, longest: int = 64) -> Earlier:
    """Find where the last 2^k tokens up to each token occurred before; `shortest` and `longest` are powers of two."""
    for size in (shortest, longest):
        if size < 1 or size & (size - 1):
            raise MnemoError(f"{size} is not a power of two")
    distance, length = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    names, size = ids.astype(np.int64), 1
    while size <= min(longest, len(ids)):
        # names[t]: the same number for equal pieces of `size` tokens that end at t. The first size - 1 are unique.
        if size >= shortest or int(names.max()) >= LARGEST_NAME:
            order = np.argsort(names, kind="stable")
            again = names[order[1:]] == names[order[:-1]]
            if size >= shortest:
                later = order[1:][again]
                distance[later], length[later] = later - order[:-1][again], size
            names[order] = np.concatenate([[0], np.cumsum(~again)])
        names[size:] = names[:-size] * (int(names.max()) + 1) + names[size:]
        names[:size] = -1 - np.arange(size)
        names, size = names + size, 2 * size
    return Earlier(distance, length)
