"""Project the rows of a memory, which are constants, together with the rows of the segment after them.

Ordinary autograd would also compute the gradient of the memory's rows and discard it: for a memory six times as long as
the segment, that is most of the work of the product.

Shapes: B batch, M memory rows, L segment rows, D width, W projected.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.ops import AUTOCAST_DEVICES

TILE_ROWS = 128
"""Rows of a tile of a matrix product: with a multiple of them, a batched product computes no more than an ordinary one"""


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type in which autocast computes products of x; the type of x without autocast."""
    kind = x.device.type
    if kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def project_after(memory: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """[memory ; x] times each half of a weight (2W, D), (B, M + L, W) each; no gradient reaches the memory."""
    dtype = compute_dtype(x)
    memory, x, weight = memory.detach().to(dtype), x.to(dtype), weight.to(dtype)
    if not torch.is_grad_enabled():
        return _products(torch.cat([memory, x], 1), weight)
    return _ProjectBehind.apply(memory, x, weight)  # type: ignore[return-value]


def _products(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Separate products for keys and values, which avoids concatenating and splitting them and their gradients."""
    first, second = weight.chunk(2)
    return F.linear(rows, first), F.linear(rows, second)


class _ProjectBehind(torch.autograd.Function):
    """Save memory and segment, which other operations keep anyway, and join them again for the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(memory, x, weight)
        return _products(torch.cat([memory, x], 1), weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        memory, x, weight = ctx.saved_tensors
        rows = torch.cat([memory, x], 1).flatten(0, 1)
        by_weight = torch.cat([gradient.flatten(0, 1).t() @ rows for gradient in gradients])
        parts = zip(gradients, weight.chunk(2), strict=True)
        first, second = (_segment_product(gradient[:, memory.shape[1] :], half) for gradient, half in parts)
        return None, first + second, by_weight


def _segment_product(rows: Tensor, weight: Tensor) -> Tensor:
    """(B, L, W) @ (W, D) for the last rows of a larger tensor, which are not one matrix in memory."""
    if rows.is_cuda and rows.shape[1] % TILE_ROWS == 0:
        # A batched product reads them where they are, and an ordinary one from a copy.
        return torch.bmm(rows, weight.expand(len(rows), -1, -1))
    return rows @ weight
