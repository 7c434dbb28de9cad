"""The kernels as PyTorch operators with gradients: for autograd, torch.compile, CUDA graphs and checkpointing."""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.ops.cuda import launch
from mnemo.ops.cuda.launch import Call


def aligned(x: Tensor) -> Tensor:
    """The same numbers where bulk copies can read them: addresses and strides are multiples of 16 bytes."""
    unit = 16 // x.element_size()
    strides = [stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    fits = x.stride(-1) == 1 and all(stride > 0 and stride % unit == 0 for stride in strides)
    return x if fits and x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    bias: Tensor | None,
    begin: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    limit: Tensor | None,
    seed: Tensor | None,
    offset: int,
    ahead: int,
    window: int,
    rate: float,
    root: float,
) -> Call:
    r, u, w, bias = (None if x is None else x.contiguous() for x in (r, u, w, bias))
    q, k, v = aligned(q), aligned(k), aligned(v)
    r = r if r is None else aligned(r)
    return Call(q, k, v, r, u, w, bias, begin, low, high, limit, seed, offset, ahead, window, rate, root)


@torch.library.custom_op("mnemo::draw_seed", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def draw_seed(q: Tensor, k: Tensor) -> Tensor:
    """A random number for the dropout of one call, whose operands tell it from others.

    An operator of its own, because torch's compiler fails at random tensors of one element (pytorch issue 168960), and
    would take two calls without operands for one.
    """
    return torch.randint(2**31 - 1, (1,), device=q.device)


@draw_seed.register_fake
def _(q, k):
    return q.new_empty(1, dtype=torch.int64)


@torch.library.custom_op("mnemo::relative_attention", mutates_args=())
def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    bias: Tensor | None,
    begin: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    limit: Tensor | None,
    seed: Tensor | None,
    offset: int,
    ahead: int,
    window: int,
    rate: float,
    root: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, log-sum-exps, and position scores for the backward pass, or nothing where it makes its own."""
    call = _call(q, k, v, r, u, w, bias, begin, low, high, limit, seed, offset, ahead, window, rate, root)
    out, lse, scores = launch.attend(call)
    return out, lse, scores if scores is not None and keep and launch.keep_scores(call) else q.new_empty(0)


@relative_attention.register_fake
def _(q, k, v, r, u, w, bias, begin, low, high, limit, seed, offset, ahead, window, rate, root, keep):
    call = Call(q, k, v, r, u, w, bias, begin, low, high, limit, seed, offset, ahead, window, rate, root)
    scores = launch.new_scores(call) if keep and launch.keep_scores(call) else q.new_empty(0)
    return launch.heads_inside(q), q.new_empty(q.shape[:3], dtype=torch.float32), scores


@torch.library.custom_op("mnemo::relative_attention_backward", mutates_args=())
def relative_attention_backward(
    d_out: Tensor,
    d_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    bias: Tensor | None,
    begin: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    limit: Tensor | None,
    seed: Tensor | None,
    offset: int,
    ahead: int,
    window: int,
    rate: float,
    root: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, r, u, w and bias; those of absent inputs are empty.

    It is no mutation that anybody can see that the scores are used up: a second pass finds their flag and makes them
    again.
    """
    call = _call(q, k, v, r, u, w, bias, begin, low, high, limit, seed, offset, ahead, window, rate, root)
    d_lse = d_lse if d_lse is None else d_lse.float().contiguous()
    kept = scores if scores.numel() else None
    found = launch.differentiate(call, out, lse, kept, aligned(d_out.to(q.dtype)), d_lse)
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in found)  # type: ignore[return-value]


@relative_attention_backward.register_fake
def _(
    d_out,
    d_lse,
    out,
    lse,
    scores,
    q,
    k,
    v,
    r,
    u,
    w,
    bias,
    begin,
    low,
    high,
    limit,
    seed,
    offset,
    ahead,
    window,
    rate,
    root,
):
    tables = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (r, u, w, bias))
    return launch.heads_inside(q), launch.heads_inside(k), launch.heads_inside(v), *tables


def _remember(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(*inputs[:12], *output)
    ctx.numbers = inputs[12:17]
    ctx.set_materialize_grads(False)


def _differentiate(ctx, d_out, d_lse, _):
    *tensors, out, lse, scores = ctx.saved_tensors
    d_out = torch.zeros_like(out) if d_out is None else d_out
    found = relative_attention_backward(d_out, d_lse, out, lse, scores, *tensors, *ctx.numbers)
    gradients = [None if x is None else gradient for x, gradient in zip(tensors, found, strict=False)]
    return *gradients, *[None] * 11


relative_attention.register_autograd(_differentiate, setup_context=_remember)
