"""Rows with padding anywhere, as the core takes them: valid tokens first.

An output stands where its token stood; a padded place repeats the output of the row's last token before it, so that
the last column predicts the next token on whichever side a row is padded.
Shapes: B rows, T columns, N valid tokens of the longest row, D model width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError


class Packed(NamedTuple):
    tokens: Tensor
    """(B, N); 0 behind a row's last"""
    lengths: Tensor | None = None
    """(B,) valid tokens; None where every token is valid"""
    places: Tensor | None = None
    """(B, T): which token of its row was the last at each column; -1 before the first"""

    def spread(self, hidden: Tensor, before: Tensor | None = None) -> Tensor:
        """Outputs (B, N, D) at the places of their tokens (B, T, D); `before` (B, D) was the last one before them."""
        if self.places is None:
            return hidden
        first = hidden.new_zeros(len(hidden), hidden.shape[2]) if before is None else before
        rows = torch.cat([first[:, None], hidden], 1)
        return rows.gather(1, (self.places + 1)[:, :, None].expand(-1, -1, rows.shape[2]))

    def along(self, values: Tensor, fill: int) -> Tensor:
        """Values (B, T) beside the tokens, moved as these are."""
        if self.lengths is None or self.places is None:
            return values
        valid = torch.diff(self.places, dim=1, prepend=self.places.new_full((len(values), 1), -1)) > 0
        return _move(values, valid, self.places, self.tokens.shape[1], fill)


def pack(tokens: Tensor, mask: Tensor | None, padding: int) -> Packed:
    """`mask` (B, S), S >= T: 0 at padding; its last T columns are the tokens'. `padding`: the id that is no token."""
    if tokens.dim() != 2:
        raise MnemoError(f"input_ids are rows of token ids (B, T), not of shape {list(tokens.shape)}")
    if mask is None and torch.compiler.is_compiling():  # looking for padding would break the graph
        return Packed(tokens)
    valid = tokens != padding
    if mask is not None:
        valid = valid & _columns(mask, tokens)
    if bool(valid.all()):
        return Packed(tokens)
    places, lengths = valid.cumsum(1) - 1, valid.sum(1)
    return Packed(_move(tokens, valid, places, int(lengths.max()), 0), lengths, places)


def _columns(mask: Tensor, tokens: Tensor) -> Tensor:
    if mask.dim() != 2 or mask.shape[0] != tokens.shape[0] or mask.shape[1] < tokens.shape[1]:
        raise MnemoError(f"attention_mask {list(mask.shape)} does not fit input_ids {list(tokens.shape)}")
    return mask[:, mask.shape[1] - tokens.shape[1] :].bool()


def _move(values: Tensor, valid: Tensor, places: Tensor, width: int, fill: int) -> Tensor:
    moved = values.new_full((len(values), width + 1), fill)
    moved.scatter_(1, torch.where(valid, places, width), values)
    return moved[:, :width]
