"""Rows that leave a memory and wait, oldest first, until they fill a block."""

from __future__ import annotations

import torch
from torch import Tensor


def leaving(
    waiting: Tensor, waiting_length: Tensor, valid: Tensor, used: Tensor, num_slots: int, num_new: int
) -> tuple[Tensor, Tensor]:
    """Which rows of [waiting ; memory ; segment] wait after a segment, and how many are valid.

    `waiting` (B, W, D) holds waiting_length[b] rows on its left; the memory's `num_slots` hold valid[b] on their
    right; the segment's `num_new` rows are used up to used[b]. Returns indices (B, W + num_new) and lengths (B,).
    """
    room = waiting.shape[1]
    gone = (valid + used - num_slots).clamp(min=0)
    place = torch.arange(room + num_new, device=waiting.device)
    behind = room + (num_slots - valid)[:, None] + place - waiting_length[:, None]
    index = torch.where(place < waiting_length[:, None], place, behind)
    return index.clamp(max=room + num_slots + num_new - 1), waiting_length + gone


def take_rows(rows: Tensor, index: Tensor) -> Tensor:
    """rows[b, index[b, i]]: (B, N, D), (B, I) -> (B, I, D)."""
    return rows.gather(1, index[..., None].expand(*index.shape, rows.shape[-1]))
