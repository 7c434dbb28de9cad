"""Cross entropy of a linear layer's logits, computed in chunks of tokens.

The forward pass keeps the log-sum-exp of each token. The backward pass computes the logits of a chunk again, replaces
them by their gradient in place, and adds up the gradients of the weights. Peak memory is the logits of one chunk.

A soft cap c replaces each logit x by c * tanh(x / c), which is between -c and c.

Shapes: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CPU_LOGITS = 2**24
DEVICE_LOGITS = 2**27
"""Number of logits of one chunk."""


def chunk_rows(hidden: Tensor, weight: Tensor) -> int:
    """Number of tokens of a chunk."""
    budget = CPU_LOGITS if hidden.device.type == "cpu" else DEVICE_LOGITS
    return max(1, budget // weight.shape[0])


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, cap: float | None = None
) -> Tensor:
    """-log p(target) for rows (N, D) and weight (V, D), in fp32 or better; 0 where a target is -1.

    Products are computed in the type of `hidden`; gradients have the type of their tensor. `cap`: of the logits.
    """
    rows = chunk_rows(hidden, weight)
    if hidden.shape[0] <= rows:
        logits = capped(_widened(_logits(hidden, weight.to(hidden.dtype), bias)), cap)
        return F.cross_entropy(logits, targets, reduction="none", ignore_index=-1)
    return torch.ops.mnemo.chunked_cross_entropy(hidden, weight, bias, targets, rows, cap)[0]


def cross_entropy_and_lse(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """As `linear_cross_entropy`, with the log-sum-exp of each token's logits; both are 0 where a target is -1."""
    rows = chunk_rows(hidden, weight)
    if hidden.shape[0] <= rows:
        logits = capped(_widened(_logits(hidden, weight.to(hidden.dtype), bias)), cap)
        loss, lse = F.cross_entropy(logits, targets, reduction="none", ignore_index=-1), logits.logsumexp(-1)
    else:
        loss, lse = torch.ops.mnemo.chunked_cross_entropy(hidden, weight, bias, targets, rows, cap)
    return loss, torch.where(targets >= 0, lse, torch.zeros_like(lse))


def capped(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(hidden, weight, bias.to(hidden.dtype))


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def forward_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, rows: int, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Losses and log-sum-exps, (N,) each."""
    weight = weight.to(hidden.dtype)
    losses, lses = [], []
    for part, goal in zip(hidden.split(rows), targets.split(rows), strict=True):
        logits = capped(_widened(_logits(part, weight, bias)), cap)
        lse = logits.logsumexp(-1)
        chosen = logits.gather(1, goal.clamp(min=0)[:, None])[:, 0]
        losses.append(torch.where(goal >= 0, lse - chosen, torch.zeros_like(lse)))
        lses.append(lse)
    return torch.cat(losses), torch.cat(lses)


def backward_chunks(
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    lse: Tensor,
    rows: int,
    cap: float | None = None,
    by_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden rows, weight and bias, from those of the losses and of the log-sum-exps, if any."""
    narrow = weight.to(hidden.dtype)
    gradient = torch.where(targets >= 0, gradient, torch.zeros_like(gradient))
    by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight)
    by_bias = torch.zeros_like(bias)
    for begin in range(0, hidden.shape[0], rows):
        part = slice(begin, begin + rows)
        rate = gradient[part, None]
        logits = capped(_widened(_logits(hidden[part], narrow, bias)), cap)
        slope = None if cap is None else 1 - (logits / cap).square()
        of_all = rate if by_lse is None else rate + by_lse[part, None]
        by_logits = logits.sub_(lse[part, None]).exp_().mul_(of_all)
        by_logits.scatter_add_(1, targets[part].clamp(min=0)[:, None], -rate)
        if slope is not None:
            by_logits.mul_(slope)
        by_bias += by_logits.sum(0)
        by_logits = by_logits.to(hidden.dtype)
        torch.mm(by_logits, narrow, out=by_hidden[part])
        by_weight += by_logits.t() @ hidden[part]
    return by_hidden, by_weight, by_bias


_chunked = torch.library.custom_op("mnemo::chunked_cross_entropy", mutates_args=())(forward_chunks)
_chunked_backward = torch.library.custom_op("mnemo::chunked_cross_entropy_backward", mutates_args=())(backward_chunks)


@_chunked.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, rows: int, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    like = hidden.new_empty(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))
    return like, torch.empty_like(like)


@_chunked_backward.register_fake
def _(
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    lse: Tensor,
    rows: int,
    cap: float | None = None,
    by_lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(hidden), torch.empty_like(weight), torch.empty_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.rows, ctx.cap = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)  # the log-sum-exps are rarely used


def _back(ctx: Any, gradient: Tensor | None, by_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    hidden, weight, bias, targets, lse = ctx.saved_tensors
    gradient = torch.zeros_like(lse) if gradient is None else gradient
    by_hidden, by_weight, by_bias = torch.ops.mnemo.chunked_cross_entropy_backward(
        gradient, hidden, weight, bias, targets, lse, ctx.rows, ctx.cap, by_lse
    )
    return by_hidden, by_weight, by_bias, None, None, None


_chunked.register_autograd(_back, setup_context=_keep)
