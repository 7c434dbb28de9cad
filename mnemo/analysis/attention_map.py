"""One segment's whole attention map: who reads memory, who writes it (figures 6 and 8 of the RMT paper).

Shapes: H heads, Q rows [memory tokens to read, tokens, memory tokens to write], K keys, those of the memory first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.analysis.attention_distance import WIDE_SHARE, place_of
from mnemo.analysis.inputs import Ids, as_ids, checked_segment
from mnemo.analysis.observers import OfText, Place, Rows, attending_layers, observe
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.ops import Attended

NO_TOKEN = -1


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
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
    """The tokens; -1 where there is none."""
    column_ids: tuple[int, ...]
    """Likewise; of a slot of memory, the token whose row it keeps."""

    def blocks(self) -> dict[tuple[str, str], float]:
        """How much rows of each kind give to columns of each kind, on average of rows and heads."""
        mean = self.heads.mean(0)
        rows, columns = (dict.fromkeys(kinds) for kinds in (self.row_kinds, self.column_kinds))
        return {(row, column): self._given(mean, row, column) for row in rows for column in columns}

    def _given(self, mean: Tensor, row: str, column: str) -> float:
        return float(mean[_of_kind(self.row_kinds, row)][:, _of_kind(self.column_kinds, column)].sum(-1).mean())

    def strongest(self, head: int, share: float = WIDE_SHARE) -> Tensor:
        """Boolean (Q, K): the memory's share of columns that each row gives most to (Transformer-XL's figure 6)."""
        inside = _of_kind(self.column_kinds, "memory") | _of_kind(self.column_kinds, "compressed")
        count = round(share * int(inside.sum()))
        rows = self.heads[head].masked_fill(~inside, float("-inf"))
        marked = torch.zeros_like(rows, dtype=torch.bool)
        return marked.scatter(-1, rows.topk(count, -1).indices, True)


def _of_kind(kinds: tuple[str, ...], kind: str) -> Tensor:
    return torch.tensor([one == kind for one in kinds], dtype=torch.bool)


class MapObserver:
    """Keeps one layer's attention in one segment."""

    def __init__(self, place: int, segment: int) -> None:
        self.place, self.segment = place, segment
        self.kept: Attended | None = None

    def see(self, place: Place, seen: OfText, whole: Attended) -> None:
        if (place.place, place.segment) == (self.place, self.segment):
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
    """The map of one layer, the last when left out, in segment `number` (from 0, the last when left out)."""
    text, segment = as_ids(model, ids, at_least=1), checked_segment(segment)
    parts = list(text.split(segment))
    number = len(parts) - 1 if number is None else number
    if not 0 <= number < len(parts):
        raise MnemoError(f"there is no segment {number}: the text has {len(parts)}, counted from 0")
    place = place_of(model, layer)
    observer = MapObserver(place, number)
    observe(model, text[: (number + 1) * segment], [observer], segment=segment, memory=memory)
    assert observer.kept is not None
    return _labelled(model, observer.kept, place, parts[: number + 1], memory)


def _labelled(model: Model, kept: Attended, place: int, parts: list[Tensor], memory: int | None) -> AttentionMap:
    layer = attending_layers(model)[place]
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
    """Kinds and tokens of a segment's rows, as layers see them and caches keep them."""
    rows = Rows.of(model, len(part))
    kinds = ["read"] * rows.read + ["token"] * rows.tokens + ["write"] * rows.write
    return kinds, [NO_TOKEN] * rows.read + part.tolist() + [NO_TOKEN] * rows.write
