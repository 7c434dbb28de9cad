"""A Triton kernel for Adam's steps of matrices from gradients in half precision, with clipping, in one pass.

Equal matrices of several layers are handled by one launch, which takes the tensors of all of them.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnemo.ops.cuda.muon_kernels import MOST_TENSORS, pick

BLOCK = 2048
"""Elements of a program"""


@triton.jit
def adam_kernel(
    weights, grads, means, squares, counts, norm, limit, lr, log_beta1, log_beta2, rest1, rest2, eps, decay, size,
    RATE_ON_DEVICE: tl.constexpr, CLIPS: tl.constexpr, DECOUPLED: tl.constexpr, BYTES: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of N tensors of `size` elements; `rest1` and `rest2`: 1 - beta; logarithms to base 2.

    `counts`: numbers of steps including this one. `norm`: of all gradients, whose norm is limited to `limit`.
    """
    index = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    weight_at = pick(weights, index, N) + at
    mean_at, square_at = pick(means, index, N) + at, pick(squares, index, N) + at
    grad = tl.load(pick(grads, index, N, BYTES) + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_at, mask=inside, other=0.0)
    mean, square = tl.load(mean_at, mask=inside, other=0.0), tl.load(square_at, mask=inside, other=0.0)
    # In double precision: after the first steps, a power of beta is almost 1.
    count = tl.load(pick(counts, index, N)).to(tl.float64)
    known1 = (1 - tl.exp2(count * log_beta1)).to(tl.float32)
    known2 = (1 - tl.exp2(count * log_beta2)).to(tl.float32)
    rate = lr
    if RATE_ON_DEVICE:
        rate = tl.load(lr)
    if CLIPS:
        grad *= tl.minimum(limit / (tl.load(norm) + 1e-6), 1.0)
    if DECOUPLED:
        weight -= rate * decay * weight
    else:
        grad += decay * weight
    mean += rest1 * (grad - mean)
    square += rest2 * (grad * grad - square)
    weight -= rate / known1 * mean / (tl.sqrt(square) / tl.sqrt(known2) + eps)
    tl.store(weight_at, weight, mask=inside)
    tl.store(mean_at, mean, mask=inside)
    tl.store(square_at, square, mask=inside)


class Slot(NamedTuple):
    """A matrix and what its step needs."""

    weight: Tensor
    grad: Tensor
    mean: Tensor
    square: Tensor
    """Running means of the gradient and of its square"""
    count: Tensor
    """() steps so far, including this one"""

    def fits(self) -> bool:
        """Whether the kernel takes these tensors: contiguous, at multiples of 16 bytes; fp32, the gradient half."""
        wide = all(tensor.dtype == torch.float32 for tensor in (self.weight, self.mean, self.square, self.count))
        aligned = all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in self)
        return wide and aligned and self.grad.dtype.itemsize == 2


def take_steps(
    slots: Sequence[Slot],
    norm: Tensor,
    limit: float | None,
    *,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    decoupled: bool,
) -> None:
    """One step of all matrices. `limit` of the norm of all gradients, which is given; `decoupled`: AdamW's decay."""
    equal: dict[int, list[Slot]] = defaultdict(list)
    for slot in slots:
        equal[slot.weight.numel()].append(slot)
    beta1, beta2 = betas
    numbers = (math.log2(beta1), math.log2(beta2), 1 - beta1, 1 - beta2, eps, decay)
    for size, members in equal.items():
        # Launches of equally many tensors where possible: every number of them is a kernel to be compiled.
        most = triton.cdiv(len(members), triton.cdiv(len(members), MOST_TENSORS))
        for begin in range(0, len(members), most):
            chosen: tuple[Any, ...] = tuple(zip(*members[begin : begin + most], strict=True))
            adam_kernel[(triton.cdiv(size, BLOCK), len(chosen[0]))](
                *chosen, norm, limit or 0.0, lr, *numbers, size,
                RATE_ON_DEVICE=isinstance(lr, Tensor), CLIPS=limit is not None, DECOUPLED=decoupled,
                BYTES=chosen[1][0].element_size(), N=len(chosen[0]), BLOCK=BLOCK,
            )  # fmt: skip
