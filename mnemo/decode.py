"""Decoding inside a segment: the committed state plus an open segment that fills token by token.

A decoded segment equals the same segment read in parallel. When it is full it is committed to the memory.
The runner owns its buffers and changes them in place; the states it takes and gives are copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.memory.protocol import Segment, Window
from mnemo.state import State, leaves

if TYPE_CHECKING:
    from mnemo.model import Model, Output


class DecodeState(NamedTuple):
    state: State
    """What is committed"""
    open: tuple[Any, ...]
    """What each stage holds of the open segment"""
    count: Tensor
    """(B,) tokens in the open segment"""


class Decoder:
    def __init__(self, model: Model, state: State | DecodeState, segment: int) -> None:
        if segment < 1:
            raise MnemoError(f"segment length {segment} must be positive")
        self.model, self.segment = model, segment
        opened = state if isinstance(state, DecodeState) else None
        committed = state.state if isinstance(state, DecodeState) else state
        with torch.no_grad():
            self.windows: list[Window] = [
                stage.window(memory, segment)  # type: ignore[operator]
                for stage, memory in zip(model.stages, committed, strict=True)
            ]
            self.tables = model.tables(segment, committed)
        self.counts: list[int] = [0] * _batch(committed)
        if opened is not None:
            self._reopen(opened)

    def _reopen(self, opened: DecodeState) -> None:
        self.counts = opened.count.tolist()
        if max(self.counts) > self.segment:
            raise MnemoError(f"an open segment of {max(self.counts)} tokens is longer than a segment of {self.segment}")
        for window, part in zip(self.windows, opened.open, strict=True):
            window.reopen(part)

    @torch.no_grad()
    def feed(self, tokens: Tensor, lengths: Sequence[int] | None = None) -> Output:
        """Read tokens (B, T), of which row b uses the first lengths[b]; the output of every token."""
        self.model.check_tokens(tokens)
        left = [tokens.shape[1]] * tokens.shape[0] if lengths is None else list(lengths)
        pieces, position = [], 0
        while position < tokens.shape[1]:
            step = self._step(max(left))
            pieces.append(self._feed(tokens[:, position : position + step]))
            used = [min(step, max(0, count)) for count in left]
            left = [count - step for count in left]
            self._advance(used)
            position += step
        segment = Segment(relation=self._relation)
        return self.model.finish(torch.cat(pieces, 1), segment)

    def _step(self, wanted: int) -> int:
        """Rows in step read to the end of the segment at once; rows out of step one token at a time."""
        if len(set(self.counts)) > 1:
            return 1
        return max(1, min(wanted, self.segment - self.counts[0]))

    def _feed(self, tokens: Tensor) -> Tensor:
        slots = torch.tensor(self.counts, device=tokens.device)[:, None] + torch.arange(
            tokens.shape[1], device=tokens.device
        )
        x = self.model.embed(tokens, slots, self.segment)
        segment = Segment(relation=self._relation, same_length=self.model.config.same_length)
        for index, window in enumerate(self.windows):
            x = window.feed(self.model.enter(index, x, slots, self.segment), self.counts, segment)
        return x

    def _relation(self, layer: Any, num_keys: int) -> Any:
        return self.tables[layer.index].take(num_keys)

    def _advance(self, used: Sequence[int]) -> None:
        self.counts = [count + more for count, more in zip(self.counts, used, strict=True)]
        full = [row for row, count in enumerate(self.counts) if count == self.segment]
        if full:
            for window in self.windows:
                window.commit(full)
            self.counts = [0 if count == self.segment else count for count in self.counts]

    def state(self) -> DecodeState:
        """A copy of everything the next token depends on."""
        longest = max(self.counts)
        return DecodeState(
            tuple(window.close() for window in self.windows),
            tuple(window.open(longest) for window in self.windows),
            torch.tensor(self.counts),
        )

    def select(self, rows: Tensor) -> Decoder:
        """A decoder of the given rows, each as often as it is named: one memory, many continuations."""
        other = object.__new__(Decoder)
        other.model, other.segment, other.tables = self.model, self.segment, self.tables
        other.windows = [window.select(rows) for window in self.windows]
        other.counts = [self.counts[row] for row in rows.tolist()]
        return other


def _batch(state: State) -> int:
    return next(leaf for _, leaf in leaves(state)).shape[0]
