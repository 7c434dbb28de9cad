"""Decoding inside a segment: the committed state plus an open segment that fills token by token.

A decoded segment equals the same segment read in parallel. When it is full it is committed to the memory.
The runner owns its buffers and changes them in place; the states it takes and gives are copies.
Rows whose open segments are equally long go in step, as one group; rows out of step are groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.memory.protocol import Layer, Relation, Segment, Window
from mnemo.state import State, leaves, select, tree_map, tree_zip

if TYPE_CHECKING:
    from mnemo.model import Model, Output


class DecodeState(NamedTuple):
    state: State
    """What is committed"""
    open: tuple[Any, ...]
    """What each stage holds of the open segment: leaves with as many entries along their time axis as the longest
    row has open tokens"""
    count: Tensor
    """(B,) tokens in the open segment"""


class _Group:
    """Rows in step."""

    def __init__(self, rows: list[int], windows: list[Window], count: int) -> None:
        self.rows, self.windows, self.count = rows, windows, count

    def take(self, places: list[int]) -> _Group:
        """The rows at these places of the group, as a group of their own."""
        if places == list(range(len(self.rows))):
            return self
        index = torch.tensor(places)
        return _Group([self.rows[p] for p in places], [window.select(index) for window in self.windows], self.count)


class Decoder:
    def __init__(self, model: Model, state: State | DecodeState, segment: int) -> None:
        if segment < 1:
            raise MnemoError(f"segment length {segment} must be positive")
        self.model, self.segment = model, segment
        committed = state.state if isinstance(state, DecodeState) else state
        with torch.no_grad():
            self.tables = model.tables(segment, committed)
            self.groups = self._reopen(state) if isinstance(state, DecodeState) else [self._group(state)]

    def _group(self, state: State, rows: list[int] | None = None, count: int = 0) -> _Group:
        stages = zip(self.model.stages, state, strict=True)
        windows: list[Window] = [stage.window(memory, self.segment) for stage, memory in stages]  # type: ignore[operator]
        return _Group(list(range(_batch(state))) if rows is None else rows, windows, count)

    def _reopen(self, opened: DecodeState) -> list[_Group]:
        counts: list[int] = opened.count.tolist()
        if max(counts) >= self.segment:
            raise MnemoError(f"{max(counts)} open tokens do not fit a segment of {self.segment}")
        groups = []
        for count in sorted(set(counts)):
            rows = [row for row, have in enumerate(counts) if have == count]
            index = torch.tensor(rows, device=next(leaves(opened.state))[1].device)
            group = self._group(select(opened.state, index), rows, count)
            for window, part in zip(group.windows, select(opened.open, index), strict=True):
                window.reopen(part, count)
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
        return self.model.finish(hidden, Segment(relation=self._relation))

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
            part, tokens = tokens.tensor_split([self.segment - group.count], 1)
            pieces.append(self._feed_part(group, part))
            group.count += part.shape[1]
            if group.count == self.segment:
                for window in group.windows:
                    window.commit()
                group.count = 0
        return torch.cat(pieces, 1)

    def _feed_part(self, group: _Group, tokens: Tensor) -> Tensor:
        slots = torch.arange(group.count, group.count + tokens.shape[1], device=tokens.device)
        x = self.model.embed(tokens, slots, self.segment)
        segment = Segment(relation=self._relation, same_length=self.model.config.same_length)
        for index, window in enumerate(group.windows):
            x = window.feed(self.model.enter(index, x, slots, self.segment), group.count, segment)
        return x

    def _relation(self, layer: Layer, num_keys: int, ahead: int = 0) -> Relation:
        return self.tables[layer.index].take(num_keys, ahead)

    def state(self) -> DecodeState:
        """A copy of everything the next token depends on."""
        longest = max(group.count for group in self.groups)
        order = torch.tensor([row for group in self.groups for row in group.rows]).argsort()
        committed = _join([tuple(window.close() for window in group.windows) for group in self.groups])
        opened = _join([tuple(window.open(longest) for window in group.windows) for group in self.groups])
        counts = torch.tensor([group.count for group in self.groups for _ in group.rows])
        device = next(leaves(committed))[1].device
        return DecodeState(select(committed, order.to(device)), select(opened, order.to(device)), counts[order])

    def select(self, rows: Tensor) -> Decoder:
        """A decoder of the given rows, each as often as it is named: one memory, many continuations."""
        other = object.__new__(Decoder)
        other.model, other.segment, other.tables, other.groups = self.model, self.segment, self.tables, []
        wanted = rows.tolist()
        for group in self.groups:
            place = {row: i for i, row in enumerate(group.rows)}
            new = [i for i, row in enumerate(wanted) if row in place]
            if new:
                index = torch.tensor([place[wanted[i]] for i in new])
                other.groups.append(_Group(new, [window.select(index) for window in group.windows], group.count))
        return other


def _join(trees: list[Any]) -> Any:
    if len(trees) == 1:
        return tree_map(lambda leaf: leaf, trees[0])
    return tree_zip(lambda *parts: torch.cat(parts), *trees)


def _batch(state: State) -> int:
    return next(leaves(state))[1].shape[0]
