"""Cutting rows of tokens into segments, each row by itself.

Rows with fewer segments than others begin later, so that all of them end together: a row's last segment is the last
one of the batch. `align` says whether a row's last segment is the short one ("left") or its first ("right").

Shapes: B rows, T columns, W widest row of a segment.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError


class Segment(NamedTuple):
    columns: Tensor
    """(B, W) where each of its tokens stands in the input"""
    lengths: Tensor | None
    """(B,) tokens of each row, the rest of W is padding; None where all rows are full"""

    def valid(self) -> Tensor:
        """(B, W) which are tokens."""
        index = torch.arange(self.columns.shape[1], device=self.columns.device)
        if self.lengths is None:
            return torch.ones_like(self.columns, dtype=torch.bool)
        return index < self.lengths[:, None]

    def take(self, values: Tensor) -> Tensor:
        """Entries of (B, T, ...) at the segment's tokens, (B, W, ...)."""
        columns = self.columns.view(*self.columns.shape, *[1] * (values.dim() - 2))
        return values.gather(1, columns.expand(*self.columns.shape, *values.shape[2:]))


def first_length(count: int, segment: int, align: str) -> int:
    """Tokens of a row's first segment when it is full, or as full as it can be."""
    return segment if align == "left" or count == 0 else (count - 1) % segment + 1


def cut(
    batch: int, width: int, mask: Tensor | None, segment: int, align: str, device: torch.device, most: int | None = None
) -> list[Segment]:
    """The segments of (B, T) columns, of which `mask` (B, T) tells the tokens from padding.

    `most`: only the last so many segments of each row.
    """
    order = None if mask is None else (mask == 0).to(torch.int8).argsort(dim=1, stable=True)
    counts = [width] * batch if mask is None else (mask != 0).sum(1).tolist()
    if max(counts, default=0) == 0:
        raise MnemoError("no tokens to read")
    borders = [_borders(count, segment, align)[-most:] if most else _borders(count, segment, align) for count in counts]
    number = max(map(len, borders))
    rows = [[(0, 0)] * (number - len(pieces)) + pieces for pieces in borders]
    return [_segment([row[step] for row in rows], order, width, device) for step in range(number)]


def _borders(count: int, segment: int, align: str) -> list[tuple[int, int]]:
    """Begin and end of a row's segments."""
    first = first_length(count, segment, align)
    ends = [*range(first, count, segment), count] if count else []
    return list(zip([0, *ends], ends, strict=False))


def _segment(pieces: list[tuple[int, int]], order: Tensor | None, width: int, device: torch.device) -> Segment:
    begins, ends = torch.tensor(pieces, device=device).unbind(1)
    lengths = ends - begins
    widest = max(end - begin for begin, end in pieces)
    index = (begins[:, None] + torch.arange(widest, device=device)).clamp(max=width - 1)
    columns = index if order is None else order.gather(1, index)
    full = all(end - begin == widest for begin, end in pieces)
    return Segment(columns, None if full else lengths)


def next_tokens(labels: Tensor, mask: Tensor | None, ignore: int = -100) -> Tensor:
    """(B, T): at every token the label of the one that follows it; padding has none."""
    if mask is None:
        return torch.nn.functional.pad(labels, (0, 1), value=ignore)[:, 1:]
    order = (mask == 0).to(torch.int8).argsort(dim=1, stable=True)
    packed = labels.gather(1, order).masked_fill(mask.gather(1, order) == 0, ignore)
    following = torch.nn.functional.pad(packed, (0, 1), value=ignore)[:, 1:]
    return torch.full_like(labels, ignore).scatter(1, order, following)


def put_back(pieces: list[tuple[Segment, Tensor]], batch: int, width: int) -> Tensor:
    """Values (B, W, ...) of segments at the columns that they came from, (B, T, ...); zeros in the padding."""
    segment, values = pieces[0]
    if len(pieces) == 1 and segment.lengths is None and values.shape[1] == width:
        return values
    out = values.new_zeros(batch, width, *values.shape[2:])
    for segment, values in pieces:
        valid = segment.valid()
        rows = torch.arange(batch, device=values.device)[:, None].expand_as(segment.columns)
        out = out.index_put((rows[valid], segment.columns[valid]), values[valid])
    return out
