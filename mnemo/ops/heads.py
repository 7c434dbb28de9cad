"""Queries and keys from projected rows: divided into heads, normalised head by head, rotated by their positions.

Shapes: B batch, T rows, H heads, d head size.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo import ops
from mnemo.ops.rotary import rotate


def place_heads(
    rows: Tensor,
    num_heads: int,
    weight: Tensor | None = None,
    eps: float = 0.0,
    rotary: tuple[Tensor, Tensor] | None = None,
    offset: int = 0,
) -> Tensor:
    """Rows (B, T, H * d) -> heads (B, H, T, d), times `weight` (d,) after an RMS norm if there is one.

    `rotary`: cosines and sines (P, d / 2) of positions, at least offset + T; the first row is at position `offset`.
    On a GPU, one kernel does all of it.
    """
    cos, sin = (None, None) if rotary is None else rotary
    if (weight is not None or cos is not None) and _is_fused(rows, rows.shape[-1] // num_heads):
        from mnemo.ops.cuda.place_heads import place_heads as operator

        if cos is not None and sin is not None:
            cos, sin = cos.contiguous(), sin.contiguous()
        return operator(rows, num_heads, weight, eps, cos, sin, offset)
    return place_heads_plain(rows, num_heads, weight, eps, cos, sin, offset)


def place_heads_plain(
    rows: Tensor,
    num_heads: int,
    weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    offset: int,
) -> Tensor:
    """`place_heads` in plain PyTorch, in the type of the rows."""
    x = rows.view(*rows.shape[:2], num_heads, rows.shape[-1] // num_heads).transpose(1, 2)
    if weight is not None:
        x = F.rms_norm(x, weight.shape, weight.to(x.dtype), eps).to(x.dtype)
    if cos is None or sin is None:
        return x
    places = slice(offset, offset + x.shape[2])
    return rotate(x, (cos[places].to(x.dtype), sin[places].to(x.dtype)))


def heads_obstacle(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """Why queries and keys are not made by a kernel; None if they are. The first call for a device tests it."""
    if device.type != "cuda":
        return f"kernels need a CUDA device, not {device.type}"
    if not ops.HAS_TRITON:
        return "Triton is not installed"
    from mnemo.ops.cuda.place_heads import TEST, obstacle

    return obstacle(dtype, size) or TEST.obstacle(device, dtype, size)


def _is_fused(rows: Tensor, size: int) -> bool:
    impl = ops.chosen()
    if impl in ("reference", "eager"):
        return False
    if impl == "fused" and ops.HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1":
        from mnemo.ops.cuda.place_heads import obstacle

        return obstacle(rows.dtype, size) is None
    return heads_obstacle(rows.device, rows.dtype, size) is None
