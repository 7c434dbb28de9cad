"""Streams of segments from a corpus: the next batch is a pure function of a cursor.

    cursor = stream.start()
    batch, cursor = stream.read(cursor)     # batch is None at the end of an epoch; the cursor starts the next one

A cursor is plain JSON data. Random numbers depend on (seed, epoch, step) only, so a saved cursor resumes exactly.

Shapes: B rows, L new tokens, C tokens of context before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.files.safe_load import is_count

Cursor = dict[str, Any]
VARY_HALF = 0.05
"""Probability that a varying segment is drawn near half the nominal length."""
VARY_STD = 5.0
VARY_MIN = 5
VARY_MAX_OVER = 15


class Batch(NamedTuple):
    """One segment of every row of a stream, with the targets of its tokens."""

    tokens: Tensor
    """(B, C + L) int64; padding on the right is 0"""
    targets: Tensor
    """(B, L) int64; -1 where there is no target"""
    lengths: Tensor | None = None
    """(B,) int64: valid tokens of each row; None if all rows are full"""
    starts: Tensor | None = None
    """(B,) bool: rows that begin a stream or document, whose memory is reset; None if there are none"""


class Stream(Protocol):
    def start(self) -> Cursor:
        """Return the cursor of the first batch of the first epoch."""
        ...

    def read(self, cursor: Cursor) -> tuple[Batch | None, Cursor]:
        """Return the batch at the cursor and the next cursor; the batch is None at the end of an epoch."""
        ...


def one_epoch(stream: Stream, cursor: Cursor | None = None) -> Iterator[Batch]:
    """Yield the batches from the cursor (default: the beginning) to the end of its epoch."""
    batch, cursor = stream.read(stream.start() if cursor is None else cursor)
    while batch is not None:
        yield batch
        batch, cursor = stream.read(cursor)


def read_on(stream: Stream, cursor: Cursor) -> tuple[Batch, Cursor]:
    """Return the next batch, from the next epoch if the current one has ended."""
    batch, cursor = stream.read(cursor)
    if batch is None:
        batch, cursor = stream.read(cursor)
    if batch is None:
        raise MnemoError("the stream has no batch in a whole epoch")
    return batch, cursor


def chance(purpose: str, seed: int, epoch: int, step: int = 0) -> np.random.Generator:
    """Return a random generator that is independent for every purpose, seed, epoch and step."""
    return np.random.default_rng([*purpose.encode(), seed, epoch, step])


class ContiguousStream:
    """A text divided into B contiguous rows; a batch is the next segment of every row.

    `context`: number of tokens before each segment that are repeated with it (the published ext_len).
    `documents`: indices of the first tokens of documents. Segments then end at document ends, rows advance
    independently, and nothing is predicted across a document's end.
    `rotate`: in every epoch, each row starts at a random position and wraps around.
    `vary`: draw each segment's length near `segment`, sometimes near half of it.
    `drop_last`: omit the last segment of an epoch if it is shorter than the others.
    """

    def __init__(
        self,
        ids: np.ndarray,
        batch: int,
        segment: int,
        *,
        context: int = 0,
        documents: np.ndarray | None = None,
        rotate: bool = False,
        vary: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        vocab_size: int | None = None,
    ) -> None:
        _check_shape(batch, segment, context)
        ids = np.asanyarray(ids)  # a corpus verifies its slices
        if documents is not None and (context or drop_last):
            raise MnemoError("with documents, rows differ in length: context and drop_last are not supported")
        self._ids, self._batch, self._segment, self._context = ids, batch, segment, context
        self._documents = None if documents is None else _check_documents(documents)
        self._rotate, self._vary, self._drop_last = rotate, vary, drop_last
        self._seed, self._vocab_size = seed, vocab_size
        self._num = len(ids) // batch
        self._layout = lru_cache(maxsize=2)(self._new_layout)
        if self._num < 2:
            raise MnemoError(f"{len(ids):,} tokens are too few for {batch} rows: every row needs at least 2")
        if self._done(self.start()):
            whole = f"rows of {self._num:,} tokens are too short for a segment of {segment:,} and its targets"
            raise MnemoError(whole if drop_last else "no document has two tokens: there is nothing to predict")

    def start(self) -> Cursor:
        return self._epoch(0)

    def read(self, cursor: Cursor) -> tuple[Batch | None, Cursor]:
        positions = self._positions(cursor)
        if self._done(cursor):
            return None, self._epoch(cursor["epoch"] + 1)
        offsets, edges = self._layout(cursor["epoch"])
        wanted = self._length(cursor["epoch"], cursor["step"])
        spans = [_span(edges[row], position, wanted) for row, position in enumerate(positions)]
        lengths = np.array([span.length for span in spans])
        width = int(lengths.max())
        before = min(self._context, positions[0])
        begins = np.array(positions) - before
        rows = self._gather(offsets, begins, lengths + before + 1, before + width + 1)
        batch = _batch(rows, before, lengths, np.array([span.start for span in spans]))
        following = [_next_position(edges[row], span) for row, span in enumerate(spans)]
        return batch, {"epoch": cursor["epoch"], "step": cursor["step"] + 1, "positions": following}

    def _epoch(self, epoch: int) -> Cursor:
        _, edges = self._layout(epoch)
        return {"epoch": epoch, "step": 0, "positions": [_skip_single(row, 0) for row in edges]}

    def _done(self, cursor: Cursor) -> bool:
        if self._drop_last:
            wanted = self._length(cursor["epoch"], cursor["step"])
            return cursor["positions"][0] + wanted > self._num - 1
        return min(cursor["positions"]) >= self._num

    def _positions(self, cursor: Cursor) -> list[int]:
        positions = cursor.get("positions")
        if not isinstance(positions, list) or len(positions) != self._batch:
            raise _foreign_cursor(self._batch)
        if not all(is_count(position, self._num) for position in positions):
            raise _foreign_cursor(self._batch)
        return positions

    def _new_layout(self, epoch: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the rotation of each row (B,), and the ends of its documents in the rotated order."""
        offsets = np.zeros(self._batch, dtype=np.int64)
        if self._rotate:
            offsets = chance("rotate", self._seed, epoch).integers(self._num, size=self._batch)
        return offsets, [self._edges(row, int(offset)) for row, offset in enumerate(offsets)]

    def _edges(self, row: int, offset: int) -> np.ndarray:
        if self._documents is None:
            return np.array([self._num])
        low, high = np.searchsorted(self._documents, [row * self._num, (row + 1) * self._num])
        begins = np.append(self._documents[low:high] - row * self._num, 0)  # the start of a row is a document start
        turned = (begins - offset) % self._num
        return np.unique(np.append(turned[turned > 0], self._num))

    def _length(self, epoch: int, step: int) -> int:
        if not self._vary:
            return self._segment
        random = chance("vary", self._seed, epoch, step)
        mean = self._segment / 2 if random.random() < VARY_HALF else self._segment
        drawn = int(random.normal(mean, VARY_STD))
        return min(self._segment + VARY_MAX_OVER, max(VARY_MIN, drawn))

    def _gather(self, offsets: np.ndarray, begins: np.ndarray, counts: np.ndarray, width: int) -> np.ndarray:
        """Return `counts` tokens of every row from position `begins`, padded with -1 to (B, width)."""
        rows = np.full((self._batch, width), -1, dtype=np.int64)
        for row, (offset, begin, count) in enumerate(zip(offsets, begins, counts, strict=True)):
            first = row * self._num
            low = (begin + offset) % self._num
            here = min(count, self._num - low)
            rows[row, :here] = self._ids[first + low : first + low + here]
            rows[row, here:count] = self._ids[first : first + count - here]
        _check_ids(rows, self._vocab_size)
        return rows


class _Span(NamedTuple):
    position: int
    length: int
    start: bool


def _span(edges: np.ndarray, position: int, wanted: int) -> _Span:
    """Return the next segment of a row: up to `wanted` tokens that have a target in the same document."""
    if position >= edges[-1]:
        return _Span(position, 0, False)
    at = int(np.searchsorted(edges, position, side="right"))
    start = position == 0 or (at > 0 and edges[at - 1] == position)
    return _Span(position, min(wanted, int(edges[at]) - 1 - position), bool(start))


def _next_position(edges: np.ndarray, span: _Span) -> int:
    """Return the position after the segment; a document's last token is only a target and is skipped."""
    position = span.position + span.length
    if span.length == 0:
        return position
    edge = int(edges[np.searchsorted(edges, position, side="right")])
    return _skip_single(edges, edge) if position == edge - 1 else position


def _skip_single(edges: np.ndarray, position: int) -> int:
    """Skip documents of one token, which have no targets."""
    while position < edges[-1]:
        edge = int(edges[np.searchsorted(edges, position, side="right")])
        if edge - position > 1:
            break
        position = edge
    return position


def _batch(rows: np.ndarray, before: int, lengths: np.ndarray, starts: np.ndarray) -> Batch:
    """Build a batch from rows (B, C + L + 1), whose last valid token is only a target."""
    width = rows.shape[1] - before - 1
    targets = rows[:, before + 1 :].copy()
    tokens = rows[:, :-1]
    tokens[np.arange(tokens.shape[1]) >= before + lengths[:, None]] = 0
    return Batch(
        torch.from_numpy(tokens.copy()),
        torch.from_numpy(targets),
        None if (lengths == width).all() else torch.from_numpy(lengths),
        torch.from_numpy(starts) if starts.any() else None,
    )


class SentenceStream:
    """Shuffled sentences, packed one after another into B rows (One Billion Word).

    Nothing is predicted across two sentences, but the memory is not reset. A last batch that is not full is omitted.
    `sentences`: indices of the first tokens of sentences. `context`: as for `ContiguousStream`.
    """

    def __init__(
        self,
        ids: np.ndarray,
        sentences: np.ndarray,
        batch: int,
        segment: int,
        *,
        context: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        vocab_size: int | None = None,
    ) -> None:
        _check_shape(batch, segment, context)
        ids = np.asanyarray(ids)
        self._ids, self._batch, self._segment, self._context = ids, batch, segment, context
        begins = _check_documents(sentences)
        self._begins = begins[begins < len(ids)]
        self._ends = np.append(self._begins[1:], len(ids))
        self._shuffle, self._seed, self._vocab_size = shuffle, seed, vocab_size
        self._order = lru_cache(maxsize=1)(self._new_order)
        if self.read(self.start())[0] is None:
            raise MnemoError(f"{len(self._begins):,} sentences do not fill {batch} rows of one segment of {segment}")

    def start(self) -> Cursor:
        return self._epoch(0)

    def _epoch(self, epoch: int) -> Cursor:
        return {"epoch": epoch, "step": 0, "taken": 0, "rows": [[0, 0]] * self._batch, "recent": [[]] * self._batch}

    def _new_order(self, epoch: int) -> np.ndarray:
        count = len(self._begins)
        return chance("shuffle", self._seed, epoch).permutation(count) if self._shuffle else np.arange(count)

    def read(self, cursor: Cursor) -> tuple[Batch | None, Cursor]:
        self._check(cursor)
        order, taken = self._order(cursor["epoch"]), cursor["taken"]
        tokens = np.empty((self._batch, self._segment), dtype=np.int64)
        targets = np.empty_like(tokens)
        rows = []
        for row, rest in enumerate(cursor["rows"]):
            filled = self._fill(tokens[row], targets[row], rest, order, taken)
            if filled is None:
                return None, self._epoch(cursor["epoch"] + 1)
            rest, taken = filled
            rows.append(rest)
        _check_ids(targets, self._vocab_size)
        _check_ids(tokens, self._vocab_size)
        recent = np.array(cursor["recent"], dtype=np.int64)
        tokens = np.concatenate([recent, tokens], axis=1)
        starts = torch.ones(self._batch, dtype=torch.bool) if cursor["step"] == 0 else None
        batch = Batch(torch.from_numpy(tokens), torch.from_numpy(targets), None, starts)
        kept = tokens[:, max(0, tokens.shape[1] - self._context) :].tolist()
        following = {"epoch": cursor["epoch"], "step": cursor["step"] + 1, "taken": taken, "rows": rows, "recent": kept}
        return batch, following

    def _check(self, cursor: Cursor) -> None:
        rows, recent = cursor.get("rows"), cursor.get("recent")
        lists = (part for part in (rows, recent) if _is_table(part, self._batch))
        if len(list(lists)) < 2 or not is_count(cursor.get("taken"), len(self._begins)):
            raise _foreign_cursor(self._batch)
        assert rows is not None
        if not all(len(row) == 2 and all(is_count(end, len(self._ids)) for end in row) for row in rows):
            raise _foreign_cursor(self._batch)

    def _fill(
        self, tokens: np.ndarray, targets: np.ndarray, rest: list[int], order: np.ndarray, taken: int
    ) -> tuple[list[int], int] | None:
        """Fill one row from the rest [low, high) of its sentence and the next ones; None if there are too few."""
        low, high = rest
        filled = 0
        while filled < len(tokens):
            if high - low < 2:
                if taken == len(order):
                    return None
                low, high = int(self._begins[order[taken]]), int(self._ends[order[taken]])
                taken += 1
            count = max(0, min(high - low - 1, len(tokens) - filled))
            tokens[filled : filled + count] = self._ids[low : low + count]
            targets[filled : filled + count] = self._ids[low + 1 : low + count + 1]
            low, filled = low + count, filled + count
        return [low, high], taken


def _is_table(value: Any, rows: int) -> bool:
    """Return whether the value is a list of `rows` lists of equal length."""
    if not isinstance(value, list) or len(value) != rows or not all(isinstance(row, list) for row in value):
        return False
    return len({len(row) for row in value}) == 1


def _foreign_cursor(batch: int) -> MnemoError:
    return MnemoError(f"the data cursor does not belong to a stream of {batch} rows of this text")


def _check_shape(batch: int, segment: int, context: int) -> None:
    if batch < 1 or segment < 1 or context < 0:
        raise MnemoError(f"batch {batch} and segment {segment} must be positive, context {context} not negative")


def _check_documents(documents: np.ndarray) -> np.ndarray:
    documents = np.asarray(documents, dtype=np.int64)
    if documents.ndim != 1 or len(documents) == 0 or documents[0] < 0 or (np.diff(documents) <= 0).any():
        raise MnemoError("document beginnings must be positions in ascending order")
    return documents


def _check_ids(ids: np.ndarray, vocab_size: int | None) -> None:
    if vocab_size is not None and ids.size and int(ids.max()) >= vocab_size:
        raise MnemoError(f"token id {int(ids.max())} is beyond the vocabulary of {vocab_size}")


def stacked(batches: Iterator[Batch], at_once: int) -> Iterator[Batch]:
    """Combine `at_once` full batches of one shape into one; other batches are passed on unchanged."""
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        if at_once == 1 or batch.lengths is not None or batch.tokens.shape != waiting[0].tokens.shape:
            yield from waiting
            waiting = []
        elif len(waiting) == at_once:
            yield Batch(torch.cat([each.tokens for each in waiting]), torch.cat([each.targets for each in waiting]))
            waiting = []
    yield from waiting
