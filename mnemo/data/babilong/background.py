"""Sentences of books as token ids: the text that hides the facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mnemo.errors import MnemoError

Encode = Callable[[Sequence[str]], list[list[int]]]
"""Token ids of each text, without special tokens."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])")
LEAST_TOKENS = 10
"""Shorter sentences are left out, as by the published generator."""
ENCODED_AT_ONCE = 4096


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; white space inside of them becomes single spaces."""
    begin = 0
    for end in SENTENCE_END.finditer(text):
        yield " ".join(text[begin : end.end()].split())
        begin = end.end()
    if text[begin:].strip():
        yield " ".join(text[begin:].split())


@dataclass(frozen=True)
class Background:
    """Token ids of the sentences in which the facts of a story are hidden."""

    ids: np.ndarray
    """(N,) token ids of all sentences, each encoded with a space before it"""
    borders: np.ndarray
    """(S + 1,) positions in `ids` where sentences begin, and the end"""

    @staticmethod
    def of(texts: Iterable[str], encode: Encode, least: int = LEAST_TOKENS) -> Background:
        """Encode sentences; those of fewer than `least` tokens are left out."""
        source, pieces, lengths = iter(texts), [], []
        while batch := list(islice(source, ENCODED_AT_ONCE)):
            kept = [ids for ids in encode([f" {text}" for text in batch]) if len(ids) >= least]
            pieces.append(np.array([token for ids in kept for token in ids], dtype=np.int32))
            lengths += map(len, kept)
        if not lengths:
            raise MnemoError(f"the background has no sentence of at least {least} tokens")
        return Background(np.concatenate(pieces), np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.borders) - 1

    def span(self, first: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Return consecutive sentences from number `first` on: their tokens, and the borders between them.

        The last sentence is cut, so that there are exactly `num_tokens`; after the last book follows the first.
        """
        first %= len(self)
        begin, end = self.borders[first], self.borders[first] + num_tokens
        repeats = -(-int(end) // len(self.ids))
        ids, borders = self.ids, self.borders
        if repeats > 1:
            ids = np.tile(ids, repeats)
            borders = np.concatenate([[0], *(self.borders[1:] + len(self.ids) * turn for turn in range(repeats))])
        after = int(np.searchsorted(borders, end))
        return ids[begin:end], np.append(borders[first:after], end) - begin
