"""Adam's steps of the matrices that have gradients in half precision.

Gradients are not cast, and not clipped by a pass of their own: one kernel reads a gradient, its clipping factor, the
weight and both moments, and writes the last three. All other weights take PyTorch's own step. State and options are
those of the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import (
    Tensor,
    _foreach_add_,  # type: ignore[attr-defined]
    _foreach_norm,  # type: ignore[attr-defined]
    nn,
)

from mnemo.ops import HAS_TRITON
from mnemo.ops.cuda.self_test import SelfTest

TOLERANCE = 1e-5
"""Of the test of the kernel: sums are rounded at other places"""


def takes_half_gradients(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether there is a kernel for this optimizer on a device, which works."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or not (HAS_TRITON and device.type == "cuda"):
        return False
    plain = not any(group["amsgrad"] or group["maximize"] for group in optimizer.param_groups)
    return plain and TEST.obstacle(device, torch.bfloat16, 0) is None


@torch.no_grad()
def clipped_step(optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], limit: float | None) -> Tensor:
    """Clip all gradients and take a step; return their norm before. `gradients`: of the matrices, in half precision.

    The matrices themselves have no gradient.
    """
    from mnemo.ops.cuda.adam_kernels import Slot, take_steps

    slots: dict[Tensor, Slot] = {}
    for weight, gradient in gradients.items():
        slot = Slot(weight, gradient, *_moments(optimizer.state[weight], weight))
        if slot.fits():
            slots[weight] = slot
        else:
            weight.grad = torch.empty_like(weight).copy_(gradient)  # with the strides of the weight
    others = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norms = [*_norms([p.grad for p in others]), *_norms([slot.grad for slot in slots.values()])]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    if limit is not None:
        nn.utils.clip_grads_with_norm_(others, limit, norm)
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        chosen = [slots[weight] for weight in group["params"] if weight in slots]
        if chosen:
            _foreach_add_([slot.count for slot in chosen], 1)
            numbers = {"lr": group["lr"], "betas": group["betas"], "eps": group["eps"]}
            take_steps(chosen, norm, limit, **numbers, decay=group["weight_decay"], decoupled=decoupled)
    optimizer.step()
    return norm


def _moments(state: dict[str, Any], weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both moments of a weight and its number of steps, made as PyTorch makes them if they are absent."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
    return state["exp_avg"], state["exp_avg_sq"], state["step"]


def _norms(gradients: list[Any]) -> list[Tensor]:
    return list(_foreach_norm(gradients, 2, torch.float32)) if gradients else []


def _failure(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """What is wrong with the kernel: two steps are compared with PyTorch's."""
    generator, results = torch.Generator().manual_seed(0), []
    shapes = ((72, 40), (72, 40), (40, 72))
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    steps = [[torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes] for _ in range(2)]
    for half in (True, False):
        weights = [nn.Parameter(values.to(device, copy=True)) for values in drawn]
        optimizer = torch.optim.AdamW(weights, 0.1, weight_decay=0.1)
        for gradients in steps:
            if half:
                clipped_step(optimizer, dict(zip(weights, gradients, strict=True)), 1.0)
            else:
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.grad = gradient.float()
                nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
        results.append([weight.detach() for weight in weights])
    worst = max(float((found - expected).norm() / expected.norm()) for found, expected in zip(*results, strict=True))
    return None if worst <= TOLERANCE else f"error {worst:.1e}"


TEST = SelfTest("kernels for Adam", _failure)
