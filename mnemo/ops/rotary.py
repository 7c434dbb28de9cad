"""Rotary positions: cosines and sines as tables, and the rotation."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_angles(num_keys: int, head_dim: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (num_keys, head_dim / 2), computed in float64, in the type and on the device of `like`.

    An opaque operator: a compiler would otherwise compute them again for every rotated element of every layer.
    """
    if torch.compiler.is_dynamo_compiling():  # true for torch.compile, not for an export
        return _tables(num_keys, head_dim, base, like.detach())
    return _compute(num_keys, head_dim, base, like)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (x_i, x_{i + d/2}) of (B, H, T, d) by each position's angles."""
    cos, sin = rotary
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def _compute(num_keys: int, head_dim: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64, device=like.device) / head_dim
    position = torch.arange(num_keys, dtype=torch.float64, device=like.device)
    angle = position[:, None] * base**-exponent
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


@torch.library.custom_op("mnemo::rotary_angles", mutates_args=())
def _tables(num_keys: int, head_dim: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    return _compute(num_keys, head_dim, base, like)


@_tables.register_fake
def _(num_keys: int, head_dim: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    table = like.new_empty(num_keys, head_dim // 2)
    return table, torch.empty_like(table)
