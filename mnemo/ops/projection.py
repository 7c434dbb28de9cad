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
"""Rows of a tile of a product: for multiples of it, a batched product computes no more than an ordinary one"""
MOST_MEMORY = 2
"""Memory rows for each row of a segment, up to which the joined rows are kept for the backward pass"""


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
    if x.is_cuda:
        return project_rows(memory, x, weight)[:2]
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
        first, second = (gradient[:, memory.shape[1] :] @ half for gradient, half in parts)
        return None, first + second, by_weight


@torch.library.custom_op("mnemo::project_rows", mutates_args=())
def project_rows(memory: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a GPU; also returns the joined rows, so that the backward pass need not join them again.

    A long memory is joined twice instead: keeping its rows in every layer would take more GPU memory than all else.
    An operator, because torch's cache of compiled graphs takes no graph with an autograd function.
    """
    rows = torch.cat([memory, x], 1)
    return *_products(rows, weight), rows if _keeps_rows(memory, x) else rows.new_empty(0)


def _keeps_rows(memory: Tensor, x: Tensor) -> bool:
    return memory.shape[1] <= MOST_MEMORY * x.shape[1]


@project_rows.register_fake
def _(memory: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, num_rows, width = len(x), memory.shape[1] + x.shape[1], weight.shape[0] // 2
    first = x.new_empty(batch, num_rows, width)
    rows = x.new_empty(batch, num_rows, x.shape[2]) if _keeps_rows(memory, x) else x.new_empty(0)
    return first, torch.empty_like(first), rows


@torch.library.custom_op("mnemo::project_rows_backward", mutates_args=())
def project_rows_backward(
    by_keys: Tensor, by_values: Tensor, memory: Tensor, x: Tensor, rows: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the weight."""
    return rows_gradient(by_keys, by_values, rows if rows.numel() else torch.cat([memory, x], 1), x.shape[1], weight)


def rows_gradient(
    by_keys: Tensor, by_values: Tensor, rows: Tensor, length: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the last `length` of rows (B, M + L, D), and of the weight (2W, D) that gave keys and values."""
    by_keys, by_values = by_keys.contiguous(), by_values.contiguous()
    by_weight, flat = torch.empty_like(weight), rows.flatten(0, 1)
    for gradient, half in zip((by_keys, by_values), by_weight.chunk(2), strict=True):
        torch.mm(gradient.flatten(0, 1).t(), flat, out=half)
    for_keys, for_values = weight.chunk(2)
    keys, values = by_keys[:, -length:], by_values[:, -length:]
    if length % TILE_ROWS:
        return keys @ for_keys + values @ for_values, by_weight
    # The last rows of every text are no matrix, so an ordinary product would copy them. A batched one reads them in
    # place, and the second one adds itself to the first.
    batch = len(keys)
    by_x = torch.bmm(keys, for_keys.expand(batch, -1, -1))
    return by_x.baddbmm_(values, for_values.expand(batch, -1, -1)), by_weight


@project_rows_backward.register_fake
def _(
    by_keys: Tensor, by_values: Tensor, memory: Tensor, x: Tensor, rows: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


def _save_rows(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    memory, x, weight = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(memory, x, output[2], weight)


def _backward(ctx: Any, by_keys: Tensor, by_values: Tensor, _: Any) -> tuple[None, Tensor, Tensor]:
    return None, *project_rows_backward(by_keys, by_values, *ctx.saved_tensors)


project_rows.register_autograd(_backward, setup_context=_save_rows)
