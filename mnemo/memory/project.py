"""Projecting the rows of a memory, which are constants, together with those of a segment behind them.

Ordinary autograd would also compute the gradient of the memory's rows, and throw it away: at a memory six times as long
as the segment, most of the work of that product. Shapes: B batch, M memory rows, L segment rows, D width, W projected.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def compute_dtype(x: Tensor) -> torch.dtype:
    """What autocast would compute products of x in; its own type where there is no autocast."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def project_behind(memory: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """[memory ; x] times weight (W, D), (B, M + L, W); no gradient reaches the memory."""
    dtype = compute_dtype(x)
    memory, x, weight = memory.detach().to(dtype), x.to(dtype), weight.to(dtype)
    if not torch.is_grad_enabled():
        return F.linear(torch.cat([memory, x], 1), weight)
    return _ProjectBehind.apply(memory, x, weight)  # type: ignore[return-value]


class _ProjectBehind(torch.autograd.Function):
    """Keeps memory and segment, which live anyway, and puts them together again for the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(memory, x, weight)
        return F.linear(torch.cat([memory, x], 1), weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        memory, x, weight = ctx.saved_tensors
        rows = torch.cat([memory, x], 1).flatten(0, 1)
        by_weight = gradient.flatten(0, 1).t() @ rows
        return None, gradient[:, memory.shape[1] :] @ weight, by_weight
