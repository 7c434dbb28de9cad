"""Attention of one new token per row to keys and values in a ring buffer, for decoding.

A ring has R slots. The new token of a row overwrites the one that is R tokens old, which it does not see; the key in
slot s is (slot - s) mod R tokens old. A row sees its newest `limits` keys, including its own. Rows may therefore be at
different places, nothing is moved, and one recorded CUDA graph serves every token.

Shapes: B rows, H heads, R slots, d head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.ops.cuda import decode_kernels


class Table(NamedTuple):
    """Position tables of distances R - 1 ... 0."""

    r: Tensor | None = None
    """(H, R, d)"""
    u: Tensor | None = None
    w: Tensor | None = None
    """(H, d) each"""
    bias: Tensor | None = None
    """(H, R)"""


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, ring: Tensor, table: Table, slots: Tensor, limits: Tensor
) -> Tensor:
    """Contexts (B, H * d) of queries q; their keys k and values v (B, H, d) are written to the ring.

    ring (2, B, H, R, d): keys and values; slots, limits (B,). The ring is changed.
    """
    attend = decode_kernels.attend if decode_kernels.suit(ring) else decode_attention_plain
    return attend(q, k, v, ring, table, slots, limits)


def decode_attention_plain(
    q: Tensor, k: Tensor, v: Tensor, ring: Tensor, table: Table, slots: Tensor, limits: Tensor
) -> Tensor:
    """The same in plain PyTorch: any device and type."""
    size, num_slots = q.shape[-1], ring.shape[3]
    rows = torch.arange(len(slots), device=ring.device)
    ring[0, rows, :, slots], ring[1, rows, :, slots] = k, v
    keys, values = ring
    distance = ages(slots, num_slots)  # (B, R)
    content = keys @ (q if table.u is None else q + table.u)[..., None]  # (B, H, R, 1)
    scores = content[..., 0].to(torch.promote_types(q.dtype, torch.float32))
    column = (num_slots - 1 - distance)[:, None].expand(scores.shape)
    if table.r is not None:
        positions = (q if table.w is None else q + table.w).transpose(0, 1) @ table.r.transpose(1, 2)  # (H, B, R)
        scores = scores + positions.transpose(0, 1).gather(2, column)
    if table.bias is not None:
        scores = scores + table.bias.expand(scores.shape).gather(2, column)
    scores = (scores * size**-0.5).masked_fill((distance >= limits[:, None])[:, None], float("-inf"))
    shares = scores.softmax(-1).to(values.dtype)
    return (shares[:, :, None] @ values).flatten(1)


def ages(slots: Tensor, num_slots: int) -> Tensor:
    """(B, R): number of tokens between each slot and the one in `slots`."""
    return (slots[:, None] - torch.arange(num_slots, device=slots.device)) % num_slots
