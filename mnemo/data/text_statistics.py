"""Count symbols, words and lines of large texts, chunk by chunk."""

from __future__ import annotations

import numpy as np

NUM_CODE_POINTS = 0x110000

_IS_SPACE = np.zeros(256, dtype=bool)
_IS_SPACE[list(b"\0 \t\n\r\x0b\x0c")] = True


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest unsigned integer type that holds every id, in the byte order of prepared files."""
    if vocab_size <= 1 << 8:
        return np.dtype("u1")
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


class SymbolCounter:
    """Counts symbols 0 .. size - 1 and records where each occurred first."""

    def __init__(self, size: int) -> None:
        self._totals = np.zeros(size, dtype=np.int64)
        self._first = np.full(size, -1, dtype=np.int64)
        self._seen = 0

    def add(self, symbols: np.ndarray) -> None:
        counts = np.bincount(symbols, minlength=len(self._totals))
        for symbol in np.flatnonzero((counts > 0) & (self._first < 0)):
            self._first[symbol] = self._seen + int(np.argmax(symbols == symbol))
        self._totals += counts
        self._seen += len(symbols)

    def ranked(self) -> list[int]:
        """Return the symbols that occurred, most frequent first, ties in order of first occurrence."""
        present = np.flatnonzero(self._totals)
        order = np.lexsort((self._first[present], -self._totals[present]))
        return present[order].tolist()


class TextCounter:
    """Counts bytes, words separated by white space, and lines of a text given in chunks of bytes."""

    def __init__(self) -> None:
        self.num_bytes = self.num_words = self.num_lines = 0
        self._inside_word = self._inside_line = False

    def add(self, data: np.ndarray) -> None:
        if not len(data):
            return
        word = ~_IS_SPACE[data]
        begins = int(np.count_nonzero(word[1:] & ~word[:-1]))
        self.num_words += begins + int(word[0] and not self._inside_word)
        self.num_lines += int(np.count_nonzero(data == ord("\n")))
        self.num_bytes += len(data)
        self._inside_word, self._inside_line = bool(word[-1]), bool(data[-1] != ord("\n"))

    def finish(self) -> None:
        """Count a last line that has no newline."""
        self.num_lines += self._inside_line
        self._inside_line = False
