"""Relative attention on a CPU without gradients: a few rows of one head at a time, in one buffer.

The position scores of a head are written to a buffer with one column more than there are keys. Viewed with rows that
are one element shorter, the buffer has every score at its key, contiguous, and the product of the content scores adds
to it directly. Scores are therefore written once, and stay in the cache for the softmax and the product with values.

Shapes: B batch, H heads, L queries and K keys of a block, W <= K + 1 columns of positions, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST_SCORES = 2**18 + 2**15
"""Number of scores that stay in a core's cache together with their operands."""
VECTOR = 16
"""Largest number of elements of a vector instruction."""
FEWEST_SCORES = 2**14
"""Least number of scores of a head: with fewer, the overhead of calls exceeds the work."""

LN2 = math.log(2)
"""Scores are divided by it, so that exponentials are powers of 2: powers of e take up to three times as long."""


class Piece(NamedTuple):
    """Queries that are computed together, and the keys that they may see."""

    queries: slice
    keys: slice
    columns: slice
    hidden: Sequence[tuple[slice, Tensor]]
    """A range of keys, and whether they are hidden: (L, K'), or (B, L, K') if rows differ"""


def suits(queries: slice, keys: slice, columns: slice) -> bool:
    """Whether a piece can be computed here, and is large enough."""
    num_queries, num_keys, num_columns = map(_length, (queries, keys, columns))
    return num_queries * num_keys >= FEWEST_SCORES and num_queries > 1 and num_columns <= num_keys + 1


class _Operands(NamedTuple):
    position: Tensor
    """(H, B, L, D): scaled queries for positions"""
    content: Tensor
    """(B, H, L, D): scaled queries for keys"""
    k: Tensor
    v: Tensor
    r: Tensor


class _Part(NamedTuple):
    """The rows, head and queries of a block of scores."""

    rows: slice
    head: int
    queries: slice

    def of(self, x: Tensor) -> Tensor:
        """This part of (B, H, L, ...)."""
        return x[self.rows, self.head, self.queries]


def attend_by_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    u: Tensor | None,
    w: Tensor | None,
    pieces: Sequence[Piece],
    with_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Contexts (B, H, L, D) and, with `with_lse`, log-sum-exps (B, H, L)."""
    scale = q.shape[-1] ** -0.5 / LN2
    content = (q if u is None else q + u[:, None]) * scale
    position = (q if w is None else q + w[:, None]).transpose(0, 1).contiguous() * scale
    operands = _Operands(position, content, k, v, r)
    out, total = _attend(operands, pieces, None)
    if _can_trust(total):
        return out, total.log_() if with_lse else None
    largest = _largest(operands, pieces)
    out, total = _attend(operands, pieces, largest)
    return out, total.log2_().add_(largest).mul_(LN2) if with_lse else None


def _attend(operands: _Operands, pieces: Sequence[Piece], largest: Tensor | None) -> tuple[Tensor, Tensor]:
    """Contexts (B, H, L, D), and sums (B, H, L) of the exponentials of scores, minus `largest` (B, H, L) if given.

    Not subtracting the maximum, which few models need, saves a pass over the scores. Dividing contexts instead of
    scores saves another one.
    """
    batch, heads, num_queries, size = operands.content.shape
    out = operands.content.new_empty(batch, num_queries, heads, size).transpose(1, 2)
    total = operands.content.new_empty(batch, heads, num_queries)
    for piece in pieces:
        for part, scores in _scores(operands, piece):
            if largest is not None:
                scores.sub_(part.of(largest)[..., None])
            torch.sum(scores.exp2_(), -1, out=part.of(total))
            torch.bmm(scores, operands.v[part.rows, part.head, piece.keys], out=part.of(out))
    return out.div_(total[..., None]), total


def _can_trust(total: Tensor) -> bool:
    """Whether exponentials of the scores, without subtracting a maximum, have neither overflowed nor vanished."""
    least, most = (1e-200, 1e200) if total.dtype == torch.float64 else (1e-25, 1e30)
    smallest, largest = torch.aminmax(total)
    return bool(smallest >= least) and bool(largest <= most)  # comparisons with nan are false


def _largest(operands: _Operands, pieces: Sequence[Piece]) -> Tensor:
    """The largest score of every query, (B, H, L)."""
    largest = operands.content.new_empty(operands.content.shape[:3])
    for piece in pieces:
        for part, scores in _scores(operands, piece):
            torch.amax(scores, -1, out=part.of(largest))
    return largest


def _scores(operands: _Operands, piece: Piece) -> Iterator[tuple[_Part, Tensor]]:
    """The scores (rows, L, K) of one head after the other, in a buffer that is used again for the next."""
    heads, batch, _, size = operands.position.shape
    for rows in _row_groups(piece, batch):
        raw, scores = _buffer(piece, _length(rows), operands.content)
        hidden = [
            (scores[..., span], mask[rows] if mask.dim() == 3 and len(mask) > 1 else mask)
            for span, mask in piece.hidden
        ]
        for head in range(heads):
            part = _Part(rows, head, piece.queries)
            position = operands.position[head, rows, piece.queries].reshape(-1, size)
            torch.mm(position, _side_by_side(operands.r[head, piece.columns]), out=raw)
            scores.baddbmm_(part.of(operands.content), operands.k[rows, head, piece.keys].transpose(1, 2))
            for seen, mask in hidden:
                seen.masked_fill_(mask, float("-inf"))
            yield part, scores


def _row_groups(piece: Piece, batch: int) -> list[slice]:
    """Number of rows whose scores fit into the cache together."""
    at_once = max(1, MOST_SCORES // (_length(piece.queries) * _length(piece.keys)))
    return [slice(begin, min(begin + at_once, batch)) for begin in range(0, batch, at_once)]


def _side_by_side(x: Tensor) -> Tensor:
    """(W, D) -> (D, W), contiguous along W: products with few rows are then a third faster."""
    return x.t() if x.stride(0) == 1 else x.t().contiguous()


def _buffer(piece: Piece, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two views of one buffer: (rows * L, W) for position scores, and (rows, L, K) of which (i, j) of each row is
    their column j + L - 1 - i.

    Elements without a position score are hidden from all queries; they only need to be finite. Scores begin at
    addresses that vector instructions can use.
    """
    num_queries, num_keys, num_columns = map(_length, (piece.queries, piece.keys, piece.columns))
    size, unused = num_queries * (num_keys + 1), -(num_queries - 1) % VECTOR
    memory = like.new_zeros(unused + rows * size)
    raw = memory.as_strided((rows * num_queries, num_columns), (num_keys + 1, 1), unused)
    return raw, memory.as_strided((rows, num_queries, num_keys), (size, num_keys, 1), unused + num_queries - 1)


def _length(span: slice) -> int:
    return span.stop - span.start
