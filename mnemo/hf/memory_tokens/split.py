"""Split rows of tokens into segments, each row independently.

Rows with fewer segments begin later than others, so that the last segment of every row is the last one of the batch.
`align` selects which segment of a row is shorter: the last one ("left") or the first one ("right").

Shapes: B rows, T columns, W widest row of a segment.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError


class SegmentColumns(NamedTuple):
    """The input columns that one segment of a batch consists of."""

    columns: Tensor
    """(B, W): input column of each token"""
    lengths: Tensor | None
    """(B,): tokens of each row, the rest of W is padding; None if all rows are full"""
    in_order: bool
    """Whether the columns of all rows are the same and consecutive: no padding in the batch"""

    def valid(self) -> Tensor:
        """Return booleans (B, W): True at tokens, False at padding."""
        index = torch.arange(self.columns.shape[1], device=self.columns.device)
        if self.lengths is None:
            return torch.ones_like(self.columns, dtype=torch.bool)
        return index < self.lengths[:, None]

    def num_slots_from(self, first: int) -> int:
        """Return how many of the last slots are needed so that all columns from `first` on are among them."""
        wanted = (self.columns >= first) & self.valid()
        slots = wanted.any(0).nonzero()
        return self.columns.shape[1] - int(slots[0]) if len(slots) else 0

    def take(self, values: Tensor) -> Tensor:
        """Return the entries (B, W, ...) of `values` (B, T, ...) at the columns of the segment."""
        columns = self.columns.view(*self.columns.shape, *[1] * (values.dim() - 2))
        return values.gather(1, columns.expand(*self.columns.shape, *values.shape[2:]))


def first_length(count: int, segment: int, align: str) -> int:
    """Return the number of tokens in the first segment of a row."""
    return segment if align == "left" or count == 0 else (count - 1) % segment + 1


def split_into_segments(
    batch: int, width: int, mask: Tensor | None, segment: int, align: str, device: torch.device, most: int | None = None
) -> list[SegmentColumns]:
    """Split (B, T) columns into segments; `mask` (B, T) is 0 at padding.

    `most`: keep only this many of the last segments of each row.
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
    """Return begin and end of the segments of a row."""
    first = first_length(count, segment, align)
    ends = [*range(first, count, segment), count] if count else []
    return list(zip([0, *ends], ends, strict=False))


def _segment(pieces: list[tuple[int, int]], order: Tensor | None, width: int, device: torch.device) -> SegmentColumns:
    begins, ends = torch.tensor(pieces, device=device).unbind(1)
    lengths = ends - begins
    widest = max(end - begin for begin, end in pieces)
    index = (begins[:, None] + torch.arange(widest, device=device)).clamp(max=width - 1)
    columns = index if order is None else order.gather(1, index)
    full = all(end - begin == widest for begin, end in pieces)
    return SegmentColumns(columns, None if full else lengths, order is None and full)


def next_tokens(labels: Tensor, mask: Tensor | None, ignore: int = -100) -> Tensor:
    """Return targets (B, T): for every token the label of the next token, `ignore` at padding."""
    if mask is None:
        return torch.nn.functional.pad(labels, (0, 1), value=ignore)[:, 1:]
    order = (mask == 0).to(torch.int8).argsort(dim=1, stable=True)
    packed = labels.gather(1, order).masked_fill(mask.gather(1, order) == 0, ignore)
    following = torch.nn.functional.pad(packed, (0, 1), value=ignore)[:, 1:]
    return torch.full_like(labels, ignore).scatter(1, order, following)


def put_back(pieces: list[tuple[SegmentColumns, Tensor]], batch: int, first: int, width: int) -> Tensor:
    """Move values of segments back to the input columns first ... width - 1: (B, width - first, ...), zeros at padding.

    Values (B, w, ...) belong to the last w slots of their segment. They are copied once, however many segments there
    are, also in the backward pass.
    """
    if all(segment.lengths is None and segment.in_order for segment, _ in pieces):
        joined = pieces[0][1] if len(pieces) == 1 else torch.cat([values for _, values in pieces], 1)
        if joined.shape[1] >= width - first:
            return joined[:, joined.shape[1] - (width - first) :]
    rows, columns, kept = [], [], []
    for segment, values in pieces:
        slots = segment.columns[:, segment.columns.shape[1] - values.shape[1] :]
        wanted = segment.valid()[:, -slots.shape[1] :] & (slots >= first)
        row, _ = place = wanted.nonzero(as_tuple=True)
        rows.append(row)
        columns.append(slots[place] - first)
        kept.append(values[place])
    out = kept[0].new_zeros(batch, width - first, *kept[0].shape[1:])
    return out.index_put((torch.cat(rows), torch.cat(columns)), torch.cat(kept))
