"""Read a text of any length into a memory, in constant memory: one segment is held at a time, and no logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.hf.memory_tokens.backbone import CausalRows
from mnemo.hf.memory_tokens.text_memory import TextMemory
from mnemo.memory.state import State

Piece = str | int | list[int] | Tensor
Source = Piece | Iterable[Piece]


class SegmentReader:
    """Collect token ids, and read every segment that is full and has a successor."""

    def __init__(self, model: Any, memory: TextMemory | None) -> None:
        self.model, self.rows = model, CausalRows(model.backbone, model.config)
        self.state: State = None if memory is None else memory.state
        self.pending: list[Tensor] = [] if memory is None else [memory.open]
        self.num_pending = 0 if memory is None else memory.open.shape[1]
        self.num_tokens = 0 if memory is None else memory.num_tokens

    def feed(self, ids: Tensor) -> None:
        """Append token ids (B, N) to the text."""
        if self.pending and len(self.pending[0]) != len(ids):
            raise MnemoError(f"the text has {len(self.pending[0])} rows, but the next piece has {len(ids)}")
        self.pending.append(ids.to(self.model.device))
        self.num_pending += ids.shape[1]
        self.num_tokens += ids.shape[1]
        while self.num_pending > self.model.config.segment:
            self._read_segment()

    def _read_segment(self) -> None:
        size = self.model.config.segment
        segment, rest = torch.cat(self.pending, 1).tensor_split([size], 1)
        state = self.model.first_state(len(segment)) if self.state is None else self.state
        _, self.state = self.model.memory_tokens(self.model._embed(segment), state, self.rows)
        self.pending, self.num_pending = [rest], self.num_pending - size

    def memory(self) -> TextMemory:
        if not self.num_pending:
            raise MnemoError("no tokens to read")
        opened = torch.cat(self.pending, 1).clone()
        self.model._embed(opened)  # checks the ids: they are read when the text is continued
        state = self.model.first_state(len(opened)) if self.state is None else self.state
        return TextMemory(state, opened, self.num_tokens)


def id_pieces(source: Source, tokenizer: Any, at_start: bool, most: int) -> Iterator[Tensor]:
    """Yield token ids (B, N), N <= `most`, of a text that is given as ids, as a string, or as an iterable of pieces.

    `at_start`: the first string begins the text, so that the tokenizer adds its special tokens.
    """
    single = isinstance(source, str | Tensor) or (isinstance(source, list) and source and isinstance(source[0], int))
    pieces: Any = [source] if single else source
    if not isinstance(pieces, Iterable):
        raise MnemoError(f"expected token ids or text, not {type(source).__name__}")
    for piece in pieces:
        ids = _encode(piece, tokenizer, at_start) if isinstance(piece, str) else piece
        yield from _rows(ids).split(most, 1)
        at_start = False


def _encode(text: str, tokenizer: Any, at_start: bool) -> list[int]:
    if tokenizer is None:
        raise MnemoError("reading text needs a tokenizer: model.read(text, tokenizer=tokenizer)")
    return tokenizer(text, add_special_tokens=at_start, verbose=False)["input_ids"]


def _rows(ids: Any) -> Tensor:
    """Return ids (B, N) as int64."""
    try:
        rows = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise MnemoError(f"expected token ids or text, not {type(ids).__name__}") from None
    rows = rows.view(-1, 1)[None, :, 0] if rows.dim() < 2 else rows
    if rows.dim() != 2 or (rows.numel() and (rows.is_floating_point() or rows.dtype == torch.bool)):
        raise MnemoError(f"expected token ids (rows, tokens), not {rows.dtype} of shape {list(rows.shape)}")
    return rows.long()
