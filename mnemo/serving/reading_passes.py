"""Passes in which an engine reads pieces of several texts together, each as one row.

Texts share a pass if their jobs allow it (`ReadJob.together`), their memories have the same sizes, and they are at the
same place of their segments: all texts that begin, and all that have reached the end of a segment. Shorter pieces are
padded if all layers keep Transformer-XL's memory; with other memories, pieces of the same length share a pass.

With a fixed number of rows (on a GPU), a text must get the same numbers whatever else is read. The shape of a pass is
then determined by each of its texts alone: pieces at the beginning of a segment are padded to a power of two, in a pass
that always has all rows. Everything else is read alone. Without fixed rows (on a CPU), a pass has the rows and the
length that its texts need, and at most the tokens of one segment in all, because its time grows with them.

Shapes: R rows of a pass, T its padded length, D model width.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.inference.decoder import DecodeState
from mnemo.inference.row_group import RowGroup, SegmentLayers, can_pad
from mnemo.memory.state import State, tree_zip
from mnemo.model import Model
from mnemo.serving.reading import Reading
from mnemo.serving.row_decoders import Layout, state_of

SHORTEST = 16
"""Padded length of shorter pieces in passes with a fixed number of rows."""
MOST_TABLES = 4
"""Sizes of memories whose position tables are kept for further texts."""


class Place(NamedTuple):
    """The memory and open segment of a text: row number `row` of a group, which others may be in too."""

    group: RowGroup
    row: int


class ReadingPasses:
    """`rows`: most texts in a pass. `fixed`: compute that many rows in every pass that texts may share."""

    def __init__(self, model: Model, segment: int, rows: int, fixed: bool) -> None:
        self.model, self.segment, self.rows, self.fixed = model, segment, rows, fixed
        self.can_pad = can_pad(model)
        self._places: dict[Reading, Place] = {}
        self._layers: dict[Layout, SegmentLayers] = {}

    def choose(self, ready: Sequence[Reading]) -> list[Reading]:
        """The first of the texts whose next piece has arrived, and others that fit into a pass with it."""
        first, *others = ready
        chosen, key = [first], self._key(first)
        for other in others if self._shares(first) else ():
            if self._shares(other) and self._key(other) == key and self._fits([*chosen, other]):
                chosen.append(other)
        return chosen

    def _shares(self, text: Reading) -> bool:
        """Whether other texts may be in a pass with this one."""
        return text.job.together and (not self.fixed or (self.can_pad and text.count == 0))

    def _key(self, text: Reading) -> Hashable:
        """Equal for texts that may share a pass."""
        return text.layout, text.count, self._own_length(text)

    def _own_length(self, text: Reading) -> int | None:
        """The length of a pass that each of its texts determines alone; None: that of its longest text."""
        if not (self.can_pad and self._shares(text)):
            return text.num_ready
        return min(max(SHORTEST, 1 << (text.num_ready - 1).bit_length()), self.segment) if self.fixed else None

    def _fits(self, texts: list[Reading]) -> bool:
        num_tokens = len(texts) * max(text.num_ready for text in texts)
        return len(texts) <= self.rows and (self.fixed or num_tokens <= self.segment)

    def compute(self, texts: list[Reading]) -> list[Tensor]:
        """The outputs (1, T, D) of the next piece of each text."""
        group = self._group(texts)
        rows = [self._places[text].row for text in texts]
        longest = self._own_length(texts[0]) or max(text.num_ready for text in texts)
        tokens = torch.zeros(len(group.rows), longest, dtype=torch.int64)
        lengths = [texts[0].num_ready] * len(group.rows)
        for text, row in zip(texts, rows, strict=True):
            assert text.piece is not None
            tokens[row, : text.num_ready], lengths[row] = text.piece, text.num_ready
        hidden, parts = group.feed_padded(tokens.to(self.model.device), lengths)
        part_of = {row: part for part in parts for row in part.rows}
        self._places |= {text: Place(part_of[row], row) for text, row in zip(texts, rows, strict=True)}
        hidden = self.model.finish(hidden).hidden
        return [hidden[row : row + 1, : lengths[row]] for row in rows]

    def _group(self, texts: list[Reading]) -> RowGroup:
        """A group with the texts' rows, whose numbers are in `_places`; in further rows, copies of a text."""
        self._open([text for text in texts if text not in self._places])
        num_rows = self.rows if self.fixed and self._shares(texts[0]) else len(texts)
        group = self._places[texts[0]].group
        if group.rows == list(range(num_rows)) and self._texts_in(group) == set(texts):
            return group
        members: dict[RowGroup, list[Reading]] = {}
        for text in texts:
            members.setdefault(self._places[text].group, []).append(text)
        parts = [group.choose([self._places[text].row for text in part]) for group, part in members.items()]
        merged = RowGroup.merged(parts)
        merged.rows = list(range(len(texts)))
        if num_rows > len(texts):
            merged = merged.choose([*merged.rows, *[0] * (num_rows - len(texts))])
        order = [text for part in members.values() for text in part]
        self._places |= {text: Place(merged, row) for row, text in enumerate(order)}
        return merged

    def _texts_in(self, group: RowGroup) -> set[Reading]:
        return {text for text, place in self._places.items() if place.group is group}

    def _open(self, texts: list[Reading]) -> None:
        """Put texts before their first piece, all at the same place, into one group."""
        if not texts:
            return
        starts = [text.start for text in texts]
        committed = [start.state if isinstance(start, DecodeState) else start for start in starts]
        state = tree_zip(lambda *parts: torch.cat(parts), *committed)
        group = RowGroup.empty(self._layers_for(texts[0].layout, state), state, list(range(len(texts))))
        if texts[0].count:
            opened = [start.open for start in starts if isinstance(start, DecodeState)]
            group.reopen(tree_zip(lambda *parts: torch.cat(parts), *opened), texts[0].count)
        self._places |= {text: Place(group, row) for row, text in enumerate(texts)}

    def _layers_for(self, layout: Layout, state: State) -> SegmentLayers:
        """The layers with the position tables for states of one layout."""
        if layout not in self._layers:
            if len(self._layers) == MOST_TABLES:
                self._layers.clear()
            self._layers[layout] = SegmentLayers(self.model, state, self.segment)
        return self._layers[layout]

    def state(self, text: Reading) -> DecodeState | None:
        """A copy of the state after the pieces so far; None before the first."""
        place = self._places.get(text)
        return None if place is None else state_of(place.group.choose([place.row]))

    def forget(self, text: Reading) -> None:
        """Drop the state of a text."""
        self._places.pop(text, None)
