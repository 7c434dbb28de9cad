"""Relative attention on a CPU where nothing is trained: one row and head after the other, in one buffer.

A buffer with one column more than there are keys takes the position scores of a head; read with rows that are one
shorter it has every score in its place, contiguous, and the content scores are added there by the product itself.
So scores are written once, stay in the cache through the softmax, and meet the values there.

Shapes: B batch, H heads, L queries and K keys of a block, W <= K + 1 columns of positions, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FEWEST_SCORES = 2**14
"""Of a head; with fewer, the calls cost more than the work."""


class Piece(NamedTuple):
    """Queries that are computed together, and what they may see."""

    queries: slice
    keys: slice
    columns: slice
    hidden: Sequence[tuple[slice, Tensor]]
    """Some of the keys, and -inf where they are hidden, else 0: (L, K'), or (B, L, K') where rows differ"""


def suits(queries: slice, keys: slice, columns: slice) -> bool:
    """Whether a piece can be computed here, and should be."""
    num_queries, num_keys, num_columns = map(_length, (queries, keys, columns))
    return num_queries * num_keys >= FEWEST_SCORES and num_queries > 1 and num_columns <= num_keys + 1


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
    """Contexts (B, H, L, D) and, where asked for, log-sum-exps (B, H, L)."""
    batch, heads, num_queries, size = q.shape
    scale = size**-0.5
    content = (q if u is None else q + u[:, None]) * scale
    position = (q if w is None else q + w[:, None]) * scale
    out = q.new_empty(batch, num_queries, heads, size).transpose(1, 2)
    lse = q.new_empty(batch, heads, num_queries) if with_lse else None
    for piece in pieces:
        rows, keys = piece.queries, piece.keys
        raw, scores = _buffer(piece, q)
        for head in range(heads):
            table = _side_by_side(r[head, piece.columns])
            for row in range(batch):
                torch.mm(position[row, head, rows], table, out=raw)
                scores.addmm_(content[row, head, rows], k[row, head, keys].t())
                for part, mask in piece.hidden:
                    scores[:, part].add_(mask[row] if mask.dim() == 3 and len(mask) > 1 else mask.squeeze(0))
                largest = None if lse is None else scores.amax(-1)
                torch.softmax(scores, -1, out=scores)
                if lse is not None and largest is not None:
                    lse[row, head, rows] = largest - scores.amax(-1).log_()
                torch.mm(scores, v[row, head, keys], out=out[row, head, rows])
    return out, lse


def _side_by_side(x: Tensor) -> Tensor:
    """(W, D) -> (D, W) with neighbours in the same row: products of few rows read that a third faster."""
    return x.t() if x.stride(0) == 1 else x.t().contiguous()


def _buffer(piece: Piece, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two views of one buffer: (L, W) for position scores, and (L, K) of which (i, j) is their column j + L - 1 - i.

    What no position score is written to is seen by no query; it must only be finite.
    """
    num_queries, num_keys, num_columns = map(_length, (piece.queries, piece.keys, piece.columns))
    memory = like.new_zeros(num_queries * (num_keys + 2))
    raw = memory.as_strided((num_queries, num_columns), (num_keys + 1, 1))
    return raw, memory.as_strided((num_queries, num_keys), (num_keys, 1), num_queries - 1)


def _length(span: slice) -> int:
    return span.stop - span.start
