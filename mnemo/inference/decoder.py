"""Decoding inside a segment: the committed state plus an open segment that fills token by token.

A decoded segment equals the same segment read in parallel. When it is full it is committed to the memory. Memory
tokens are rows of the segment: the read block comes before its first token, the write block behind its last one.
The runner owns its buffers and changes them in place; the states it takes and gives are copies.
Rows whose open segments are equally long go in step, as one group; rows out of step are groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.memory.protocol import OpenSegment, Segment
from mnemo.memory.state import State, leaves, select, tree_map, tree_zip
from mnemo.ops import Blocks, Causal

if TYPE_CHECKING:
    from mnemo.model import Model, Output


class DecodeState(NamedTuple):
    state: State
    """What is committed"""
    open: tuple[Any, ...]
    """What each stage holds of the open segment: leaves with as many entries along their time axis as the row with
    most open tokens has there, its read block included"""
    count: Tensor
    """(B,) tokens in the open segment"""


class _Group:
    """Rows in step."""

    def __init__(self, rows: list[int], segments: list[OpenSegment], count: int, tokens: Any = None) -> None:
        self.rows, self.segments, self.count = rows, segments, count
        self.tokens = tokens
        """The memory that the open segment reads, where there are memory tokens; without the stages' own"""

    def take(self, places: list[int]) -> _Group:
        """The rows at these places of the group, as a group of their own."""
        if places == list(range(len(self.rows))):
            return self
        return self.select([self.rows[place] for place in places], torch.tensor(places))

    def select(self, rows: list[int], places: Tensor) -> _Group:
        """A group of the given rows, which are copies of those at `places`."""
        tokens = self.tokens if self.tokens is None else select(self.tokens, places.to(self.tokens.started.device))
        return _Group(rows, [segment.select(places) for segment in self.segments], self.count, tokens)

    def state(self) -> State:
        layers = tuple(segment.state() for segment in self.segments)
        return layers if self.tokens is None else self.tokens._replace(inner=layers)


class Decoder:
    def __init__(self, model: Model, state: State | DecodeState, segment: int) -> None:
        if segment < 1:
            raise MnemoError(f"segment length {segment} must be positive")
        self.model, self.segment = model, segment
        config = model.config.tokens
        self.num_read = 0 if config is None else config.num
        committed = state.state if isinstance(state, DecodeState) else state
        with torch.no_grad():
            self.tables = model.tables(segment, committed)
            self.groups = self._reopen(state) if isinstance(state, DecodeState) else [self._group(state)]

    def _group(self, state: State, rows: list[int] | None = None, count: int = 0) -> _Group:
        stages, num_rows = zip(self.model.stages, self.model.layer_states(state), strict=True), self._num_rows
        segments: list[OpenSegment] = [stage.open(memory, num_rows) for stage, memory in stages]  # type: ignore[operator]
        tokens = self.model.input_memory.own(state)
        return _Group(list(range(_batch(state))) if rows is None else rows, segments, count, tokens)

    @property
    def _num_rows(self) -> int:
        return self.model.num_rows(self.segment)

    def _open_rows(self, count: int) -> int:
        """Rows that are there when so many tokens are open: the read block comes with the first of them."""
        return self.num_read + count if count else 0

    def _reopen(self, opened: DecodeState) -> list[_Group]:
        counts: list[int] = opened.count.tolist()
        if max(counts) >= self.segment:
            raise MnemoError(f"{max(counts)} open tokens do not fit a segment of {self.segment}")
        groups = []
        for count in sorted(set(counts)):
            rows = [row for row, have in enumerate(counts) if have == count]
            index = torch.tensor(rows, device=next(leaves(opened.state))[1].device)
            group = self._group(select(opened.state, index), rows, count)
            for segment, part in zip(group.segments, select(opened.open, index), strict=True):
                segment.restore(part, self._open_rows(count))
            groups.append(group)
        return groups

    @property
    def batch(self) -> int:
        return sum(len(group.rows) for group in self.groups)

    @torch.no_grad()
    def feed(self, tokens: Tensor, lengths: Sequence[int] | None = None) -> Output:
        """Read tokens (B, T), of which row b uses the first lengths[b]; the output of every token used."""
        self.model.check_tokens(tokens)
        if lengths is not None:
            self._split(lengths)
        hidden = None
        for group in self.groups:
            used = tokens.shape[1] if lengths is None else lengths[group.rows[0]]
            if used == 0:
                continue
            rows = self._feed(group, tokens[group.rows, :used])
            if len(self.groups) == 1 and used == tokens.shape[1]:
                hidden = rows
                break
            if hidden is None:
                hidden = rows.new_zeros(*tokens.shape, rows.shape[-1])
            hidden[group.rows, :used] = rows
        if hidden is None:
            raise MnemoError("no tokens to read")
        return self.model.finish(hidden)

    def _split(self, lengths: Sequence[int]) -> None:
        """Make groups whose rows read equally many tokens."""
        groups = []
        for group in self.groups:
            by_length: dict[int, list[int]] = {}
            for place, row in enumerate(group.rows):
                by_length.setdefault(lengths[row], []).append(place)
            groups += [group.take(places) for places in by_length.values()]
        self.groups = groups

    def _feed(self, group: _Group, tokens: Tensor) -> Tensor:
        pieces = []
        while tokens.shape[1]:
            if group.count == 0 and self.num_read:
                self._feed_memory(group, 0)
            part, tokens = tokens.tensor_split([self.segment - group.count], 1)
            pieces.append(self._feed_rows(group, self.model.embedding(part), self.num_read + group.count))
            group.count += part.shape[1]
            if group.count == self.segment:
                self._commit(group)
        return torch.cat(pieces, 1)

    def _feed_rows(self, group: _Group, x: Tensor, begin: int, mask: Causal | Blocks = Causal()) -> Tensor:
        """Embedded rows x (B, T, D) behind `begin` rows of the segment."""
        slots = torch.arange(begin, begin + x.shape[1], device=x.device)
        # Wrapped positions count the keys of the whole segment.
        num_later = self._num_rows - begin - x.shape[1] if mask.ahead == "wrap" else 0
        tables = replace(self.tables, num_later=num_later)
        segment = Segment(tables=tables, same_length=self.model.config.same_length, row_mask=mask)
        x = self.model.at_input(x, slots, self._num_rows)
        for index, opened in enumerate(group.segments):
            x = opened.feed(self.model.enter(index, x, slots, self._num_rows), begin, segment)
        return x

    def _feed_memory(self, group: _Group, begin: int) -> Tensor:
        """A block of memory tokens behind `begin` rows of the segment; what became of it."""
        memory, tokens = self.model.memory_tokens, group.tokens
        assert memory is not None and tokens is not None
        mask = memory.config.row_mask(torch.full_like(tokens.started, self.segment), begin)
        return self._feed_rows(group, memory.rows(tokens), begin, mask)

    def _commit(self, group: _Group) -> None:
        """The segment is full: write the memory, then let the stages keep their part of it."""
        memory = self.model.memory_tokens
        if memory is not None and group.tokens is not None and memory.config.carries:
            write = memory.config.write
            hidden = self._feed_memory(group, self.num_read + self.segment if write else 0)
            group.tokens = memory.carry(group.tokens, self.model.finish(hidden).hidden, None)
        for segment in group.segments:
            segment.commit()
        group.count = 0

    def state(self) -> DecodeState:
        """A copy of everything the next token depends on."""
        longest = max(self._open_rows(group.count) for group in self.groups)
        order = torch.tensor([row for group in self.groups for row in group.rows]).argsort()
        committed = _join([group.state() for group in self.groups])
        opened = _join([tuple(segment.contents(longest) for segment in group.segments) for group in self.groups])
        counts = torch.tensor([group.count for group in self.groups for _ in group.rows])
        device = next(leaves(committed))[1].device
        return DecodeState(select(committed, order.to(device)), select(opened, order.to(device)), counts[order])

    def select(self, rows: Tensor) -> Decoder:
        """A decoder of the given rows, each as often as it is named: one memory, many continuations."""
        other = object.__new__(Decoder)
        other.model, other.segment, other.tables, other.groups = self.model, self.segment, self.tables, []
        other.num_read = self.num_read
        wanted = rows.tolist()
        for group in self.groups:
            place = {row: i for i, row in enumerate(group.rows)}
            new = [i for i, row in enumerate(wanted) if row in place]
            if new:
                index = torch.tensor([place[wanted[i]] for i in new])
                other.groups.append(group.select(new, index))
        return other


def _join(trees: list[Any]) -> Any:
    if len(trees) == 1:
        return tree_map(lambda leaf: leaf, trees[0])
    return tree_zip(lambda *parts: torch.cat(parts), *trees)


def _batch(state: State) -> int:
    return next(leaves(state))[1].shape[0]
