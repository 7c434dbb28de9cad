"""Rows that have left a memory and wait, oldest first, until they fill a block."""

from __future__ import annotations

import torch
from torch import Tensor


def leaving(
    waiting: Tensor, waiting_length: Tensor, valid: Tensor, used: Tensor, num_slots: int, num_new: int
) -> tuple[Tensor, Tensor]:
    """Indices (B, W + num_new) of the rows of [waiting ; memory ; segment] that wait after a segment; lengths (B,).

    `waiting` (B, W, D) has waiting_length[b] valid rows on its left, the memory of `num_slots` rows has valid[b] on its
    right, and the segment of `num_new` rows has used[b] on its left.
    """
    room = waiting.shape[1]
    gone = (valid + used - num_slots).clamp(min=0)
    place = torch.arange(room + num_new, device=waiting.device)
    leaving_row = room + (num_slots - valid)[:, None] + place - waiting_length[:, None]
    index = torch.where(place < waiting_length[:, None], place, leaving_row)
    return index.clamp(max=room + num_slots + num_new - 1), waiting_length + gone


def take_rows(rows: Tensor, index: Tensor) -> Tensor:
    """rows[b, index[b, i]]: (B, N, D), (B, I) -> (B, I, D)."""
    return rows.gather(1, index[..., None].expand(*index.shape, rows.shape[-1]))
