"""Triton kernels for Muon's steps: what is not a matrix product, in two passes over weights, gradients and momenta.

Equal matrices of several layers are handled by one launch, which takes the tensors of all of them.

Shapes: N tensors, each of P parts (R, C) below each other; BR x BC tiles.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_TENSORS = 16
"""Tensors of one launch"""
BLOCK = 64
"""Rows and columns of a tile"""
VECTOR = 4096
"""Numbers of a matrix that a program divides by its norm"""
SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def pick(tensors, index, N: tl.constexpr, BYTES: tl.constexpr = 4):
    """One of N tensors of numbers of 2 or 4 bytes, which begin at multiples of 16 bytes.

    As a distance from the first of them, so that the compiler knows the alignment, and loads 16 bytes at once.
    """
    begin = tensors[0].to(tl.int64)
    distance = begin - begin
    for i in tl.static_range(1, N):
        distance = tl.where(index == i, (tensors[i].to(tl.int64) - begin) // BYTES, distance)
    return tensors[0] + tl.multiple_of(distance, 16 // BYTES)


@triton.jit
def _tile(R, C, BR: tl.constexpr, BC: tl.constexpr):
    """This program's rows (BR, 1) and columns (1, BC) of a part, and which of them exist."""
    tiles = tl.cdiv(C, BC)
    rows = (tl.program_id(0) // tiles * BR + tl.arange(0, BR))[:, None]
    columns = (tl.program_id(0) % tiles * BC + tl.arange(0, BC))[None, :]
    return rows, columns, (rows < R) & (columns < C)


@triton.jit
def direction_kernel(
    grads, momenta, out, sums, momentum, norm, limit, R, C,
    CLIPS: tl.constexpr, BYTES: tl.constexpr, N: tl.constexpr, P: tl.constexpr, TALL: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """New momenta, and Nesterov's directions: `out` (N * P, R, C), transposed if TALL, and sums of squares by tile.

    `norm`: of all gradients, whose norm is limited to `limit`. BYTES of a gradient's number.
    """
    part = tl.program_id(1)
    rows, columns, inside = _tile(R, C, BR, BC)
    at = (part % P * R + rows) * C + columns
    grad_at = pick(grads, part // P, N, BYTES) + at
    held_at = pick(momenta, part // P, N) + at
    grad, held = tl.load(grad_at, mask=inside, other=0.0).to(tl.float32), tl.load(held_at, mask=inside, other=0.0)
    if CLIPS:
        grad *= tl.minimum(limit / (tl.load(norm) + 1e-6), 1.0)
    held += (1 - momentum) * (grad - held)
    tl.store(held_at, held, mask=inside)
    ahead = grad + momentum * (held - grad)
    tl.store(sums + part * tl.num_programs(0) + tl.program_id(0), tl.sum(ahead * ahead))
    first = out + part.to(tl.int64) * R * C
    if TALL:
        turned = tl.trans(columns) * R + tl.trans(rows)
        tl.store(first + turned, tl.trans(ahead).to(out.dtype.element_ty), mask=tl.trans(inside))
    else:
        tl.store(first + rows * C + columns, ahead.to(out.dtype.element_ty), mask=inside)


@triton.jit
def normalise_kernel(x, sums, num_sums, size, BLOCK: tl.constexpr, SUMS: tl.constexpr):
    """Divide matrices x (N, size) by their norms, from sums of squares (N, num_sums); zero stays zero."""
    matrix, at = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    parts = tl.arange(0, SUMS)
    squares = tl.sum(tl.load(sums + matrix * num_sums + parts, mask=parts < num_sums, other=0.0))
    place = x + matrix.to(tl.int64) * size + at
    values = tl.load(place, mask=at < size, other=0.0).to(tl.float32)
    values /= tl.maximum(tl.sqrt(squares), SMALLEST)
    tl.store(place, values.to(x.dtype.element_ty), mask=at < size)


@triton.jit
def step_kernel(
    weights, updates, lr, scale, decay, R, C,
    RATE_ON_DEVICE: tl.constexpr, N: tl.constexpr, P: tl.constexpr, TALL: tl.constexpr, BR: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """weights * (1 - lr * decay) - lr * scale * updates, for updates (N * P, R, C), transposed if TALL."""
    part = tl.program_id(1)
    rows, columns, inside = _tile(R, C, BR, BC)
    weight_at = pick(weights, part // P, N) + (part % P * R + rows) * C + columns
    first = updates + part.to(tl.int64) * R * C
    if TALL:
        turned = tl.trans(columns) * R + tl.trans(rows)
        update = tl.trans(tl.load(first + turned, mask=tl.trans(inside), other=0.0))
    else:
        update = tl.load(first + rows * C + columns, mask=inside, other=0.0)
    rate = lr
    if RATE_ON_DEVICE:
        rate = tl.load(lr)
    weight = tl.load(weight_at, mask=inside, other=0.0) * (1 - rate * decay)
    tl.store(weight_at, weight - rate * scale * update.to(tl.float32), mask=inside)


def takes(tensor: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> bool:
    """Whether the kernels take a matrix: plain, contiguous, of such a type, at a multiple of 16 bytes."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.dtype in dtypes and tensor.dim() == 2
    return plain and tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _sizes(tensor: Tensor, parts: int) -> tuple[int, int, int, bool]:
    """Rows and columns of a part, tiles of it, and whether it is tall."""
    rows, columns = tensor.shape[0] // parts, tensor.shape[1]
    return rows, columns, num_tiles(rows, columns), rows > columns


def write_directions(
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    parts: int,
    momentum: float,
    out: Tensor,
    sums: Tensor,
    clip: tuple[Tensor, float] | None,
) -> None:
    """Move momenta of equal shape, write Nesterov's directions to `out` (N * P, R, C), R <= C, and the sums of squares
    of their tiles to `sums` (N * P, tiles).

    All gradients are of one type, single or half. `clip`: the norm of all gradients, and its limit.
    """
    rows, columns, tiles, tall = _sizes(grads[0], parts)
    norm, limit = clip or (None, 0.0)
    for begin in range(0, len(grads), MOST_TENSORS):
        some = slice(begin, begin + MOST_TENSORS)
        chosen, first = tuple(grads[some]), begin * parts
        direction_kernel[(tiles, len(chosen) * parts)](
            chosen, tuple(momenta[some]), out[first:], sums[first:], momentum, norm, limit, rows, columns,
            CLIPS=clip is not None, BYTES=chosen[0].element_size(), N=len(chosen), P=parts, TALL=tall, BR=BLOCK,
            BC=BLOCK,
        )  # fmt: skip


def num_tiles(rows: int, columns: int) -> int:
    """Tiles of a matrix, of which each has a sum of squares."""
    return -(-rows // BLOCK) * -(-columns // BLOCK)


def normalise(x: Tensor, sums: Tensor) -> None:
    """Divide matrices (N, R, C) by their norms; `sums` (N, tiles): of squares."""
    size = x[0].numel()
    normalise_kernel[(triton.cdiv(size, VECTOR), len(x))](
        x, sums, sums.shape[1], size, BLOCK=VECTOR, SUMS=triton.next_power_of_2(sums.shape[1])
    )


def take_steps(
    weights: Sequence[Tensor], updates: Tensor, parts: int, lr: float | Tensor, scale: float, decay: float
) -> None:
    """Add updates (N * P, R, C), R <= C, to weights of equal shape, times -lr * scale, after their decay."""
    rows, columns, tiles, tall = _sizes(weights[0], parts)
    for begin in range(0, len(weights), MOST_TENSORS):
        chosen: tuple[Any, ...] = tuple(weights[begin : begin + MOST_TENSORS])
        step_kernel[(tiles, len(chosen) * parts)](
            chosen, updates[begin * parts :], lr, scale, decay, rows, columns,
            RATE_ON_DEVICE=isinstance(lr, Tensor), N=len(chosen), P=parts, TALL=tall, BR=BLOCK, BC=BLOCK,
        )  # fmt: skip
