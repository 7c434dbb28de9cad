"""The tokens of a session that the playground displays, with their scores.

A transcript follows its session: tokens are appended as they are read or written. A session that other clients moved
forward, or that began with a memory file, has tokens that the transcript does not know; `positions` has a step there.
"""

from __future__ import annotations

import io
import zipfile
from typing import NamedTuple, Self

import numpy as np

from mnemo.analysis import Earlier, earlier_occurrences
from mnemo.errors import MnemoError

SHORTEST_REPEAT = {"byte": 8, "char": 8, "word": 2, "bpe": 2}
"""Equal tokens that count as a repetition, by unit."""
USUAL_REPEAT = 4
LONGEST_SEARCH = 1 << 20
"""Repetitions are searched in the newest tokens only, as many as this."""

MOST_SHOWN = 1 << 23
"""Tokens of a transcript; those after them are not shown."""
_COLUMNS = np.dtype(
    [
        ("id", np.int32),
        ("position", np.int64),  # number of the token in its session, from 0
        ("in_segment", np.int32),  # number of the token in its segment, from 0
        ("written", np.bool_),  # by the model; otherwise it was read
        ("with_memory", np.float32),  # nats; NaN if unknown
        ("without", np.float32),
    ]
)


class Tokens(NamedTuple):
    """Tokens that follow each other in a session."""

    ids: np.ndarray
    position: int
    """Tokens in the session before them."""
    open: int
    """Tokens in the open segment before them."""
    written: bool
    nats: np.ndarray
    """The loss of each token; NaN for the first token of a text, which nothing predicts."""


class Transcript:
    def __init__(self, segment: int, unit: str) -> None:
        self.segment, self.unit = segment, unit
        self._rows = np.zeros(256, _COLUMNS)
        self._size = 0
        self._earlier = Earlier(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> np.ndarray:
        """A structured array (T,); the last column may still be filled in."""
        return self._rows[: self._size]

    @property
    def end(self) -> int:
        """The number of tokens in the session after the last one shown; 0 for an empty transcript."""
        return int(self.rows["position"][-1]) + 1 if self._size else 0

    @property
    def is_full(self) -> bool:
        return self._size >= MOST_SHOWN

    def append(self, tokens: Tokens) -> None:
        """Add tokens, unless the transcript is full."""
        if self.is_full:
            return
        begin, count = self._size, len(tokens.ids)
        if begin + count > len(self._rows):
            # Twice as many as needed, so that appending single tokens costs constant time on average.
            self._rows = np.concatenate([self.rows, np.zeros(begin + 2 * count, _COLUMNS)])
        new = self._rows[begin : begin + count]
        new["id"], new["written"], new["with_memory"], new["without"] = tokens.ids, tokens.written, tokens.nats, np.nan
        new["position"] = tokens.position + np.arange(count)
        new["in_segment"] = (tokens.open + np.arange(count)) % self.segment
        self._size = begin + count

    def baseline_pieces(self, begin: int) -> list[range]:
        """Return the pieces to read, each from an empty memory, for the losses without memory from index `begin` on.

        A piece is one segment and the token after it, which the segment's last token predicts: all tokens of a piece
        but its first get a loss. Segments whose first token is unknown are left out.
        """
        first = max(0, begin - self.segment)
        opening = first + np.flatnonzero(self.rows["in_segment"][first:] == 0)
        pieces = [self._from_opening(int(start)) for start in opening]
        return [piece for piece in pieces if len(piece) > 1 and piece.stop > begin]

    def _from_opening(self, start: int) -> range:
        """Return a segment and the token after it, up to the first step in the positions."""
        positions = self.rows["position"][start : start + self.segment + 1]
        steps = np.flatnonzero(np.diff(positions) != 1)
        return range(start, start + (int(steps[0]) + 1 if len(steps) else len(positions)))

    def set_baseline(self, piece: range, nats: np.ndarray) -> None:
        """Store the losses without memory of all tokens of a piece but its first."""
        self._rows["without"][piece.start + 1 : piece.stop] = nats

    def earlier(self) -> Earlier:
        """Return where the tokens up to each token occurred before; searched again after new tokens."""
        if len(self._earlier.distance) != self._size:
            shortest, skipped = SHORTEST_REPEAT.get(self.unit, USUAL_REPEAT), max(0, self._size - LONGEST_SEARCH)
            found = earlier_occurrences(self.rows["id"][skipped:], shortest)
            none = np.zeros(skipped, np.int64)
            self._earlier = Earlier(*(np.concatenate([none, column]) for column in found))
        return self._earlier

    def overview(self, buckets: int) -> np.ndarray:
        """Return (2, buckets): mean nats with memory, and mean nats saved, of equal parts of the text; NaN: unknown."""
        edges = np.linspace(0, self._size, min(buckets, self._size) + 1).astype(np.int64)
        rows = self.rows
        columns = (rows["with_memory"], rows["without"] - rows["with_memory"])
        return np.stack([_means(column, edges) for column in columns])

    def copy(self) -> Transcript:
        other = Transcript(self.segment, self.unit)
        other._rows, other._size, other._earlier = self.rows.copy(), self._size, self._earlier
        return other

    def to_bytes(self) -> bytes:
        out = io.BytesIO()
        np.savez(out, rows=self.rows, segment=self.segment, unit=self.unit)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                found = cls(int(file["segment"]), str(file["unit"]))
                found._rows = np.ascontiguousarray(file["rows"]).astype(_COLUMNS, casting="equiv")
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise MnemoError(f"the stored transcript is damaged: {error}") from None
        found._size = len(found._rows)
        return found


def _means(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean of the known values between each edge and the next; NaN if all are unknown."""
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0), dtype=np.float64)])
    counts = np.concatenate([[0], np.cumsum(known)])
    number = np.diff(counts[edges])
    return np.where(number > 0, np.diff(sums[edges]) / np.maximum(number, 1), np.nan)
