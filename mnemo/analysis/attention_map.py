"""The attention map of one segment, including memory tokens (figures 6 and 8 of the RMT paper).

Shapes: H heads, Q rows [memory tokens to read, tokens, memory tokens to write], K keys, those of the memory first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.analysis.attention_distance import WIDE_SHARE, attending_index
from mnemo.analysis.inputs import Ids, as_ids, checked_segment
from mnemo.analysis.observers import AttentionSource, Rows, TextAttention, attending_layers, observe
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.ops import Attended

NO_TOKEN = -1


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """Attention of one layer in one segment: every query with every key."""

    layer: int
    """From 0."""
    segment: int
    """From 0."""
    heads: Tensor
    """(H, Q, K)."""
    row_kinds: tuple[str, ...]
    """`read`, `token` or `write`."""
    column_kinds: tuple[str, ...]
    """`empty`, `compressed`, `memory`, and those of rows."""
    row_ids: tuple[int, ...]
    """Token ids of the rows; -1 for other rows."""
    column_ids: tuple[int, ...]
    """Token ids of the columns, -1 for others; a memory slot has the id of the token that it stores."""

    def blocks(self) -> dict[tuple[str, str], float]:
        """Return the attention from each kind of row to each kind of column, averaged over rows and heads."""
        mean = self.heads.mean(0)
        rows, columns = (dict.fromkeys(kinds) for kinds in (self.row_kinds, self.column_kinds))
        return {(row, column): self._block(mean, row, column) for row in rows for column in columns}

    def _block(self, mean: Tensor, row: str, column: str) -> float:
        return float(mean[_of_kind(self.row_kinds, row)][:, _of_kind(self.column_kinds, column)].sum(-1).mean())

    def strongest(self, head: int, share: float = WIDE_SHARE) -> Tensor:
        """Return booleans (Q, K): per row, the given share of memory columns with most attention (XL's figure 6)."""
        inside = _of_kind(self.column_kinds, "memory") | _of_kind(self.column_kinds, "compressed")
        count = round(share * int(inside.sum()))
        rows = self.heads[head].masked_fill(~inside, float("-inf"))
        marked = torch.zeros_like(rows, dtype=torch.bool)
        return marked.scatter(-1, rows.topk(count, -1).indices, True)


def _of_kind(kinds: tuple[str, ...], kind: str) -> Tensor:
    return torch.tensor([one == kind for one in kinds], dtype=torch.bool)


class MapObserver:
    """Stores the attention of one layer in one segment."""

    def __init__(self, layer: int, segment: int) -> None:
        self.layer, self.segment = layer, segment
        self.kept: Attended | None = None

    def see(self, source: AttentionSource, seen: TextAttention, whole: Attended) -> None:
        if (source.layer, source.segment) == (self.layer, self.segment):
            self.kept = whole


def attention_map(
    model: Model,
    ids: Ids,
    *,
    segment: int,
    layer: int | None = None,
    number: int | None = None,
    memory: int | None = None,
) -> AttentionMap:
    """Return the map of one layer (default: the last) in segment `number` (from 0; default: the last)."""
    text, segment = as_ids(model, ids, at_least=1), checked_segment(segment)
    parts = list(text.split(segment))
    number = len(parts) - 1 if number is None else number
    if not 0 <= number < len(parts):
        raise MnemoError(f"there is no segment {number}: the text has {len(parts)}, counted from 0")
    index = attending_index(model, layer)
    observer = MapObserver(index, number)
    observe(model, text[: (number + 1) * segment], [observer], segment=segment, memory=memory)
    assert observer.kept is not None
    return _labelled(model, observer.kept, index, parts[: number + 1], memory)


def _labelled(model: Model, kept: Attended, index: int, parts: list[Tensor], memory: int | None) -> AttentionMap:
    layer = attending_layers(model)[index]
    kinds, ids = _rows(model, parts[-1])
    earlier = [token for part in parts[:-1] for token in _rows(model, part)[1]]
    num_cached = kept.probabilities.shape[3] - len(kinds)
    slots = min(num_cached, model.config.memory.lengths(model.config.num_layers, memory)[layer])
    known = min(slots, len(earlier))
    seen = kept.visible[0, 0, :, : num_cached - slots].any(0).tolist()
    cached = ["compressed" if one else "empty" for one in seen] + ["empty"] * (slots - known) + ["memory"] * known
    return AttentionMap(
        layer=layer,
        segment=len(parts) - 1,
        heads=kept.probabilities[0].cpu().double(),
        row_kinds=tuple(kinds),
        column_kinds=(*cached, *kinds),
        row_ids=tuple(ids),
        column_ids=(*[NO_TOKEN] * (num_cached - known), *earlier[len(earlier) - known :], *ids),
    )


def _rows(model: Model, part: Tensor) -> tuple[list[str], list[int]]:
    """Return kinds and token ids of the rows of a segment, including memory tokens."""
    rows = Rows.of(model, len(part))
    kinds = ["read"] * rows.read + ["token"] * rows.tokens + ["write"] * rows.write
    return kinds, [NO_TOKEN] * rows.read + part.tolist() + [NO_TOKEN] * rows.write
