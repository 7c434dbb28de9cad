"""Measure how often a text repeats itself, and find what it repeats."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

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
    names, size = np.unique(ids, return_inverse=True)[1].astype(np.int64), 1
    while size <= longest and size <= len(ids):
        # names[t]: the same number for equal pieces of `size` tokens that end at t; the first size - 1 have none.
        if size >= shortest:
            found = _steps_back(names[size - 1 :])
            seen = np.flatnonzero(found) + size - 1
            distance[seen], length[seen] = found[found > 0], size
        names, size = _names_of_pairs(names, size), 2 * size
    return Earlier(distance, length)


def _steps_back(names: np.ndarray) -> np.ndarray:
    """Return how many places before each name the same name occurs; 0 if it is the first."""
    order = np.argsort(names, kind="stable")
    again = names[order[1:]] == names[order[:-1]]
    steps = np.zeros(len(names), np.int64)
    steps[order[1:][again]] = (order[1:] - order[:-1])[again]
    return steps


def _names_of_pairs(names: np.ndarray, size: int) -> np.ndarray:
    """Return the names of pieces of twice the size, from those of both halves."""
    pairs = np.zeros_like(names)
    pairs[size:] = names[:-size] * (int(names.max()) + 1) + names[size:]
    return np.unique(pairs, return_inverse=True)[1].astype(np.int64)
