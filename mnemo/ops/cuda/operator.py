"""The kernels as PyTorch operators with gradients: for autograd, torch.compile, CUDA graphs and checkpointing.

Operators take the fields of `Arguments` one by one, because their schema knows tensors and numbers only. The schema is
made from these fields, and every function here takes them as a sequence.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from mnemo.ops.cuda import launch
from mnemo.ops.cuda.compile_together import compile_attention
from mnemo.ops.cuda.launch import Arguments

SCHEMA_TYPES = {"Tensor": "Tensor", "Tensor | None": "Tensor?", "int": "SymInt", "float": "float"}
SCHEMA = ", ".join(f"{SCHEMA_TYPES[str(field.type)]} {field.name}" for field in fields(Arguments))
NUM_ARGUMENTS = len(fields(Arguments))
NUM_TENSORS = sum("Tensor" in str(field.type) for field in fields(Arguments))
"""They are the first fields."""
DIFFERENTIABLE = 8
"""q, k, v, r, u, w, bias and gate, the first of them."""


def aligned(x: Tensor) -> Tensor:
    """The same numbers in a layout for bulk copies: addresses and strides are multiples of 16 bytes."""
    unit = 16 // x.element_size()
    strides = [stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    fits = x.stride(-1) == 1 and all(stride > 0 and stride % unit == 0 for stride in strides)
    return x if fits and x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)


def _aligned_arguments(values: tuple[Any, ...]) -> Arguments:
    given = Arguments(*values)
    tables = (given.r, given.u, given.w, given.bias, given.gate)
    r, u, w, bias, gate = (None if x is None else x.contiguous() for x in tables)
    q, k, v = aligned(given.q), aligned(given.k), aligned(given.v)
    return replace(given, q=q, k=k, v=v, r=r if r is None else aligned(r), u=u, w=w, bias=bias, gate=gate)


@torch.library.custom_op("mnemo::draw_seed", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def draw_seed(q: Tensor, k: Tensor) -> Tensor:
    """A random number for the dropout of one call, which the operands q and k distinguish from other calls.

    A separate operator, because torch's compiler fails at random tensors of one element (pytorch issue 168960), and
    would merge two calls without operands.
    """
    return torch.randint(2**31 - 1, (1,), device=q.device)


@draw_seed.register_fake
def _(q, k):
    return q.new_empty(1, dtype=torch.int64)


@torch.library.custom_op(
    "mnemo::relative_attention", mutates_args=(), schema=f"({SCHEMA}, bool keep) -> (Tensor, Tensor, Tensor)"
)
def relative_attention(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, log-sum-exps, and position scores for the backward pass; no scores if it computes them again."""
    arguments = _aligned_arguments(values[:-1])
    if values[-1]:
        compile_attention(arguments)
    keep = values[-1] and launch.keep_scores(arguments)
    out, lse, scores = launch.attend(arguments, keep)
    return out, lse, scores if keep and scores is not None else arguments.q.new_empty(0)


@relative_attention.register_fake
def _(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    arguments, keep = Arguments(*values[:-1]), values[-1]
    q = arguments.q
    scores = launch.new_scores(arguments, True) if keep and launch.keep_scores(arguments) else q.new_empty(0)
    return launch.heads_inside(q), q.new_empty(q.shape[:3], dtype=torch.float32), scores


@torch.library.custom_op(
    "mnemo::relative_attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_out, Tensor? d_lse, Tensor out, Tensor lse, Tensor scores, {SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def relative_attention_backward(
    d_out: Tensor, d_lse: Tensor | None, out: Tensor, lse: Tensor, scores: Tensor, *values: Any
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, r, u, w, bias and gate; those of absent inputs are empty.

    Backward overwrites `scores`, which is not declared as a mutation: a flag makes a second backward recompute them.
    """
    arguments = _aligned_arguments(values)
    d_lse = d_lse if d_lse is None else d_lse.float().contiguous()
    kept = scores if scores.numel() else None
    found = launch.differentiate(arguments, out, lse, kept, aligned(d_out.to(arguments.q.dtype)), d_lse)
    return tuple(arguments.q.new_empty(0) if gradient is None else gradient for gradient in found)


@relative_attention_backward.register_fake
def _(d_out: Tensor, d_lse: Tensor | None, out: Tensor, lse: Tensor, scores: Tensor, *values: Any) -> Any:
    given = Arguments(*values)
    q, tables = given.q, (given.r, given.u, given.w, given.bias, given.gate)
    empty = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in tables)
    return launch.heads_inside(q), launch.heads_inside(given.k), launch.heads_inside(given.v), *empty


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(*inputs[:NUM_TENSORS], *output)
    ctx.numbers = inputs[NUM_TENSORS:NUM_ARGUMENTS]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, out, lse, scores = ctx.saved_tensors
    d_out = torch.zeros_like(out) if d_out is None else d_out
    found = relative_attention_backward(d_out, d_lse, out, lse, scores, *tensors, *ctx.numbers)
    gradients = [None if x is None else gradient for x, gradient in zip(tensors, found, strict=False)]
    return *gradients, *[None] * (NUM_ARGUMENTS + 1 - DIFFERENTIABLE)


relative_attention.register_autograd(_backward, setup_context=_save_for_backward)
