"""Rows of a decoder that are at the same place of their open segments, and are therefore computed together.

Memory tokens are rows of the segment: the read block comes before the segment's first token, the write block after its
last one. They are computed when the segment is opened and when it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from mnemo.memory.protocol import Call, OpenSegment, Segment
from mnemo.memory.state import State, select, tree_zip
from mnemo.ops import Blocks, Causal

if TYPE_CHECKING:
    from mnemo.model import Model


def can_pad(model: Model) -> bool:
    """Whether rows of a group may use different numbers of the tokens that it is fed.

    In Transformer-XL's memory, later tokens leave no trace, and to commit a segment computes nothing.
    """
    config = model.config
    caches = all(memory.traits.key_value_cache for memory in config.memory.memories(config.num_layers))
    return caches and config.tokens is None


class SegmentLayers:
    """A model's layers for segments of one length, with their position tables: shared by all groups of a decoder."""

    def __init__(self, model: Model, state: State, segment: int) -> None:
        self.model, self.segment = model, segment
        self.num_rows = model.num_rows(segment)
        self.tables = model.tables(segment, state)

    def open(self, state: State) -> list[OpenSegment]:
        """The empty open segment of each stage, after the memories of a state."""
        stages = zip(self.model.stages, self.model.layer_states(state), strict=True)
        return [stage.open(memory, self.num_rows) for stage, memory in stages]  # type: ignore[operator]

    def feed(
        self, stages: list[OpenSegment], x: Tensor, begin: int, mask: Causal | Blocks, written: bool = False
    ) -> Tensor:
        """Append embedded rows x (B, T, D) to `begin` open ones, and return the last layer's rows.

        `written`: they are the write block, which ends the segment.
        """
        # Wrapped positions count the keys of the whole segment, later ones included.
        num_later = self.num_rows - begin - x.shape[1] if mask.ahead == "wrap" else 0
        tables = replace(self.tables, num_later=num_later)
        call = Call(written=x.shape[1] if written else 0)
        segment = Segment(tables=tables, same_length=self.model.config.same_length, row_mask=mask, call=call)
        slots = torch.arange(begin, begin + x.shape[1], device=x.device)
        x = self.model.at_input(x, slots, self.num_rows)
        for index, stage in enumerate(stages):
            x = stage.feed(self.model.enter(index, x, slots, self.num_rows), begin, segment)
        return x


class FeedRows(Protocol):
    def __call__(self, x: Tensor, begin: int, mask: Causal | Blocks, written: bool = False, /) -> Tensor:
        """Append rows to the open segment after `begin` others, under a mask; return the last layer's rows."""
        ...


class NoMemoryTokens:
    """The memory tokens of a model that has none."""

    num_read = 0

    def open(self, feed: FeedRows) -> None:
        pass

    def commit(self, feed: FeedRows, feed_copies: FeedRows) -> None:
        pass

    def state(self, layers: tuple[Any, ...]) -> State:
        return layers

    def select(self, places: Tensor) -> NoMemoryTokens:
        return self


class OpenMemoryTokens:
    """The memory tokens of an open segment."""

    def __init__(self, model: Model, own_state: Any, segment: int) -> None:
        assert model.memory_tokens is not None
        self.model, self.memory, self.segment = model, model.memory_tokens, segment
        self.num_read = model.input_memory.num_read
        self.tokens = own_state
        """The memory that the open segment reads, without that of the stages"""

    def open(self, feed: FeedRows) -> None:
        """Compute the read block, before the segment's first token."""
        if self.num_read:
            self._feed_block(feed, 0)

    def commit(self, feed: FeedRows, feed_copies: FeedRows) -> None:
        """Compute the block whose outputs become the next segment's memory: the write block, or the read block again.

        `feed_copies`: leaves the stages as they are, which have read the read block already.
        """
        config = self.memory.config
        if config.carries or config.num_written:
            last = self.num_read + self.segment
            hidden = self._feed_block(feed, last) if config.num_written else self._feed_block(feed_copies, 0)
            self.tokens = self.memory.carry(self.tokens, self.model.finish(hidden).hidden, None)

    def _feed_block(self, feed: FeedRows, begin: int) -> Tensor:
        mask = self.memory.row_mask(torch.full_like(self.tokens.started, self.segment), begin)
        return feed(self.memory.rows(self.tokens), begin, mask, begin > 0)

    def state(self, layers: tuple[Any, ...]) -> State:
        return self.model.input_memory.with_inner(self.tokens, layers)

    def select(self, places: Tensor) -> OpenMemoryTokens:
        chosen = select(self.tokens, places.to(self.tokens.started.device))
        return OpenMemoryTokens(self.model, chosen, self.segment)


class RowGroup:
    """Rows with equally many open tokens. `rows` are their numbers in the decoder's batch."""

    def __init__(
        self,
        layers: SegmentLayers,
        rows: list[int],
        stages: list[OpenSegment],
        memory_tokens: NoMemoryTokens | OpenMemoryTokens,
        count: int,
    ) -> None:
        self.layers, self.rows, self.stages = layers, rows, stages
        self.memory_tokens, self.count = memory_tokens, count

    @classmethod
    def empty(cls, layers: SegmentLayers, state: State, rows: list[int]) -> RowGroup:
        """Rows without open tokens, after a state."""
        own_state, memory_tokens = layers.model.input_memory.own(state), NoMemoryTokens()
        if own_state is not None:
            memory_tokens = OpenMemoryTokens(layers.model, own_state, layers.segment)
        return cls(layers, rows, layers.open(state), memory_tokens, 0)

    @staticmethod
    def merged(groups: Sequence[RowGroup]) -> RowGroup:
        """The rows of groups with equally many open tokens, in one group; they keep their numbers."""
        if len(groups) == 1:
            return groups[0]
        state = tree_zip(_cat, *(group.state() for group in groups))
        opened = tree_zip(_cat, *(group.open_part(group.num_open) for group in groups))
        merged = RowGroup.empty(groups[0].layers, state, [row for group in groups for row in group.rows])
        merged.reopen(opened, groups[0].count)
        return merged

    def reopen(self, opened: tuple[Any, ...], count: int) -> None:
        """Continue with the first `count` open tokens of each row of what `open_part` returned."""
        self.count = count
        for stage, part in zip(self.stages, opened, strict=True):
            stage.restore(part, self.num_open)

    @property
    def num_open(self) -> int:
        """Rows of the open segment: its tokens, and the read block, which is computed with the first of them."""
        return self.memory_tokens.num_read + self.count if self.count else 0

    def feed(self, tokens: Tensor) -> Tensor:
        """Read tokens (B, T), T > 0, across as many segments as they fill; return the last layer's rows."""
        ends = range(self.layers.segment - self.count, tokens.shape[1], self.layers.segment)
        return torch.cat([self._feed_part(part) for part in tokens.tensor_split(list(ends), 1)], 1)

    def feed_padded(self, tokens: Tensor, lengths: Sequence[int]) -> tuple[Tensor, list[RowGroup]]:
        """Read tokens (B, T) that fit into the open segment, of which row b uses the first lengths[b].

        Return the last layer's rows, and a group for each length. Only for lengths that are equal, or for memories in
        which the padding after a row's tokens leaves no trace (`can_pad`).
        """
        hidden = self._append(tokens)
        parts = self.split(lengths)
        for part in parts:
            part._grow(lengths[part.rows[0]])
        return hidden, parts

    def _feed_part(self, tokens: Tensor) -> Tensor:
        """Read tokens that fit into the open segment."""
        hidden = self._append(tokens)
        self._grow(tokens.shape[1])
        return hidden

    def _append(self, tokens: Tensor) -> Tensor:
        """Compute tokens after the open ones, without counting them."""
        if self.count == 0:
            self.memory_tokens.open(self._feed_rows)
        x = self.layers.model.embedding(tokens)
        return self._feed_rows(x, self.memory_tokens.num_read + self.count, Causal())

    def _grow(self, num_tokens: int) -> None:
        """Count tokens that were computed; a full segment is committed."""
        self.count += num_tokens
        if self.count == self.layers.segment:
            self._commit()

    def _feed_rows(self, x: Tensor, begin: int, mask: Causal | Blocks, written: bool = False) -> Tensor:
        return self.layers.feed(self.stages, x, begin, mask, written)

    def _feed_copies(self, x: Tensor, begin: int, mask: Causal | Blocks, written: bool = False) -> Tensor:
        index = torch.arange(len(self.rows))
        return self.layers.feed([stage.select(index) for stage in self.stages], x, begin, mask, written)

    def _commit(self) -> None:
        """Move the full segment into the memories: into memory tokens first, then into each stage's own."""
        self.memory_tokens.commit(self._feed_rows, self._feed_copies)
        for stage in self.stages:
            stage.commit()
        self.count = 0

    def state(self) -> State:
        """The committed state."""
        return self.memory_tokens.state(tuple(stage.state() for stage in self.stages))

    def open_part(self, length: int) -> tuple[Any, ...]:
        """The first `length` rows of the open segment in each stage."""
        return tuple(stage.contents(length) for stage in self.stages)

    def split(self, lengths: Sequence[int]) -> list[RowGroup]:
        """Groups of rows with equal `lengths`; `lengths` has an entry for every row of the batch."""
        by_length: dict[int, list[int]] = {}
        for place, row in enumerate(self.rows):
            by_length.setdefault(lengths[row], []).append(place)
        if len(by_length) == 1:
            return [self]
        return [self._select([self.rows[place] for place in places], places) for places in by_length.values()]

    def choose(self, wanted: list[int]) -> RowGroup:
        """A group of those rows of `wanted` that are in this one, numbered by their place in `wanted`."""
        places = {row: place for place, row in enumerate(self.rows)}
        new = [index for index, row in enumerate(wanted) if row in places]
        return self._select(new, [places[wanted[index]] for index in new])

    def _select(self, rows: list[int], places: list[int]) -> RowGroup:
        """Copies of the rows at `places`, with new numbers."""
        index = torch.tensor(places, dtype=torch.int64)
        stages = [stage.select(index) for stage in self.stages]
        return RowGroup(self.layers, rows, stages, self.memory_tokens.select(index), self.count)


def _cat(*parts: Tensor) -> Tensor:
    return torch.cat(parts)
