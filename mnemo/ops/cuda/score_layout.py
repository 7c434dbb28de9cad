"""The layout of scores: one buffer that is both a matrix over (query, key) and one over (query, distance).

Rows are sorted by residue, then by query, then by batch row: [head, i % 8, (i // 8) * B + b], each `pitch` elements
long, and the score of query i and key j is at column

    p = j - 8 * (i // 8) + first        = (j - i + L - 1) + i % 8 + pad,        first = L - 1 + pad = 0 modulo 8

With one stride, the rows of a residue are a matrix over distances; with a stride that is 8 less, a matrix over keys.
All strides are multiples of 8 elements, 16 bytes, and no data is moved to shift scores. `pitch` is large enough that
writing all K keys of a row overwrites, in other rows, only columns of keys before the first.

A flag after the last row tells whether the buffer still holds position scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RESIDUES = 8
ROW_TILE = 64
"""Groups of rows are padded to whole tiles of this many rows."""
ALIGNED = 16
"""Rows by distance begin at multiples of this many elements, a memory sector: otherwise writing takes twice as long."""
SLACK = 16
"""Elements after the last row, for the flag."""


@dataclass(frozen=True)
class Layout:
    batch: int
    heads: int
    num_queries: int
    num_keys: int
    num_distances: int
    """Distances that can be seen, from the farthest down"""

    @property
    def pad(self) -> int:
        return -(self.num_queries - 1) % RESIDUES

    @property
    def first(self) -> int:
        return self.num_queries - 1 + self.pad

    @property
    def residue_rows(self) -> int:
        """Queries of a residue."""
        return -(-self.num_queries // RESIDUES)

    @property
    def group_rows(self) -> int:
        rows = self.batch * self.residue_rows
        return -(-rows // ROW_TILE) * ROW_TILE

    @property
    def pitch(self) -> int:
        last_row = self.num_keys + self.first - RESIDUES * (self.residue_rows - 1)
        least = max(self.num_keys + RESIDUES, self.num_distances + RESIDUES - 1 + self.pad, last_row)
        return -(-least // ALIGNED) * ALIGNED

    @property
    def num_rows(self) -> int:
        return self.heads * RESIDUES * self.group_rows

    @property
    def num_elements(self) -> int:
        return self.num_rows * self.pitch + SLACK

    def by_distance(self, scores: Tensor) -> Tensor:
        """The view (rows, pitch) of a buffer."""
        return scores[: self.num_rows * self.pitch].view(self.num_rows, self.pitch)

    def by_key(self, scores: Tensor) -> Tensor:
        """The view (H, B, i // 8, i % 8, K) of a buffer."""
        residue = self.group_rows * self.pitch
        shape = (self.heads, self.batch, self.residue_rows, RESIDUES, self.num_keys)
        strides = (RESIDUES * residue, self.pitch, self.batch * self.pitch - RESIDUES, residue, 1)
        return scores.as_strided(shape, strides, self.first)

    def clean(self, scores: Tensor, reach: int, limit: Tensor | None) -> Tensor:
        """(rows, pitch) with zeros in columns that no kernel writes: those of keys before the first and, with a limit,
        of keys after it or more than `reach` after the query's position."""
        rows = torch.arange(self.num_rows, device=scores.device)
        within = rows % self.group_rows // self.batch
        lowest = (self.first - RESIDUES * within)[:, None]
        columns = torch.arange(self.pitch, device=scores.device)
        unwritten = columns < lowest
        if limit is not None:
            query = RESIDUES * within + rows // self.group_rows % RESIDUES
            last = torch.minimum(limit - 1, query + reach)[:, None]
            unwritten |= (columns > lowest + last) | (query >= self.num_queries)[:, None]
        return scores.masked_fill(unwritten, 0)

    def flag(self, scores: Tensor) -> Tensor:
        """(1,) int32: not 0 while the buffer holds position scores."""
        end = self.num_rows * self.pitch
        return scores[end : end + SLACK].view(torch.int32)[:1]
