"""Move the padding of rows to the right, which the core requires, and move outputs back to their columns.

After unpacking, a padded column holds the output of the last token before it. The last column therefore predicts the
next token, no matter on which side a row is padded.
Shapes: B rows, T columns, N valid tokens of the longest row, D model width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.errors import MnemoError


class Packed(NamedTuple):
    tokens: Tensor
    """(B, N); 0 after the last token of a row"""
    lengths: Tensor | None = None
    """(B,) valid tokens; None if there is no padding"""
    token_index: Tensor | None = None
    """(B, T): index of the last valid token at or before each column, -1 before the first; None without padding"""

    def unpack(self, hidden: Tensor, before: Tensor | None = None) -> Tensor:
        """Move outputs (B, N, D) to the columns of their tokens, (B, T, D).

        `before` (B, D): the previous output, for columns before the first token; zeros if None.
        """
        if self.token_index is None:
            return hidden
        first = hidden.new_zeros(len(hidden), hidden.shape[2]) if before is None else before
        rows = torch.cat([first[:, None], hidden], 1)
        return rows.gather(1, (self.token_index + 1)[:, :, None].expand(-1, -1, rows.shape[2]))

    def pack_values(self, values: Tensor, fill: int) -> Tensor:
        """Pack values (B, T), one per column, like the tokens; `fill` is the padding value."""
        if self.lengths is None or self.token_index is None:
            return values
        valid = torch.diff(self.token_index, dim=1, prepend=self.token_index.new_full((len(values), 1), -1)) > 0
        return _move(values, valid, self.token_index, self.tokens.shape[1], fill)


def pack(tokens: Tensor, mask: Tensor | None, padding: int) -> Packed:
    """Pack tokens (B, T).

    `mask` (B, S) with S >= T: 0 at padding; its last T columns belong to the tokens. `padding`: the padding id.
    """
    if tokens.dim() != 2:
        raise MnemoError(f"input_ids are rows of token ids (B, T), not of shape {list(tokens.shape)}")
    if mask is None and torch.compiler.is_compiling():  # a search for padding ids would break the graph
        return Packed(tokens)
    valid = tokens != padding
    if mask is not None:
        valid = valid & _columns(mask, tokens)
    if bool(valid.all()):
        return Packed(tokens)
    index, lengths = valid.cumsum(1) - 1, valid.sum(1)
    return Packed(_move(tokens, valid, index, int(lengths.max()), 0), lengths, index)


def _columns(mask: Tensor, tokens: Tensor) -> Tensor:
    if mask.dim() != 2 or mask.shape[0] != tokens.shape[0] or mask.shape[1] < tokens.shape[1]:
        raise MnemoError(f"attention_mask {list(mask.shape)} does not fit input_ids {list(tokens.shape)}")
    return mask[:, mask.shape[1] - tokens.shape[1] :].bool()


def _move(values: Tensor, valid: Tensor, index: Tensor, width: int, fill: int) -> Tensor:
    moved = values.new_full((len(values), width + 1), fill)
    moved.scatter_(1, torch.where(valid, index, width), values)
    return moved[:, :width]
