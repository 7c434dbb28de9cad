"""Triton kernels that divide projected rows into heads, normalise each head, and rotate it by its position.

Plain PyTorch makes ten passes over the rows for this, forward and backward; each kernel here makes one. A vector is
one head of one row. It is loaded as two halves of the same columns, because rotation mixes x_i and x_{i + d/2}.

Shapes: B batch, T rows, H heads, D head size, BM vectors of a program, BH columns of a half, a power of 2.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_halves(source, vectors, inside, D: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr):
    """Both halves of vectors (BM,) that begin at these elements, (BM, BH) in fp32; zeros outside."""
    column = tl.arange(0, BH)[None, :]
    first = source + vectors[:, None] + column
    left = tl.load(first, mask=inside[:, None] & (column < HALF), other=0.0).to(tl.float32)
    right = tl.load(first + HALF, mask=inside[:, None] & (column < D - HALF), other=0.0).to(tl.float32)
    return left, right


@triton.jit
def _store_halves(target, vectors, inside, left, right, D: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr):
    column = tl.arange(0, BH)[None, :]
    first = target + vectors[:, None] + column
    tl.store(first, left.to(target.dtype.element_ty), mask=inside[:, None] & (column < HALF))
    tl.store(first + HALF, right.to(target.dtype.element_ty), mask=inside[:, None] & (column < D - HALF))


@triton.jit
def _load_weight(weight, D: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr):
    column = tl.arange(0, BH)
    left = tl.load(weight + column, mask=column < HALF, other=0.0).to(tl.float32)
    right = tl.load(weight + HALF + column, mask=column < D - HALF, other=0.0).to(tl.float32)
    return left[None, :], right[None, :]


@triton.jit
def _angles(cos, sin, positions, inside, HALF: tl.constexpr, BH: tl.constexpr):
    """Rows of the tables (positions, HALF), (BM, BH) each."""
    column = tl.arange(0, BH)[None, :]
    at, mask = positions[:, None] * HALF + column, inside[:, None] & (column < HALF)
    return tl.load(cos + at, mask=mask, other=0.0).to(tl.float32), tl.load(sin + at, mask=mask, other=0.0).to(
        tl.float32
    )


@triton.jit
def _inverse_size(left, right, eps, D: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps) of every vector, (BM, 1)."""
    return tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)[:, None]


@triton.jit
def place_heads_kernel(
    x, weight, cos, sin, out, x_batch, x_row, num_vectors, num_rows, offset, eps,
    NORM: tl.constexpr, ROTARY: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Vectors of x, strides (x_batch, x_row, D, 1) -> out (B, T, H, D), contiguous."""
    vector = tl.program_id(0) * BM + tl.arange(0, BM)
    inside, row = vector < num_vectors, vector // H % num_rows
    begin = (vector // (H * num_rows)).to(tl.int64) * x_batch + row.to(tl.int64) * x_row + vector % H * D
    left, right = _load_halves(x, begin, inside, D, HALF, BH)
    if NORM:
        inverse = _inverse_size(left, right, eps, D)
        left_weight, right_weight = _load_weight(weight, D, HALF, BH)
        left, right = left * inverse * left_weight, right * inverse * right_weight
    if ROTARY:
        c, s = _angles(cos, sin, row + offset, inside, HALF, BH)
        left, right = left * c - right * s, right * c + left * s
    _store_halves(out, vector.to(tl.int64) * D, inside, left, right, D, HALF, BH)


@triton.jit
def place_heads_backward_kernel(
    x, weight, cos, sin, d_out, d_x, sums, x_batch, x_row, g_batch, g_head, g_row, num_vectors, num_rows, offset, eps,
    num_tiles,
    NORM: tl.constexpr, ROTARY: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """d_x (B, T, H, D), contiguous, and this program's part of the weight's gradient, a row of `sums` (programs, D).

    Each program adds up `num_tiles` tiles in order, so that the sums are the same in every run.
    """
    program, column = tl.program_id(0), tl.arange(0, BH)
    left_sum, right_sum = tl.zeros((BM, BH), tl.float32), tl.zeros((BM, BH), tl.float32)
    for tile in range(num_tiles):
        vector = (program * num_tiles + tile) * BM + tl.arange(0, BM)
        inside, row, head = vector < num_vectors, vector // H % num_rows, vector % H
        batch = (vector // (H * num_rows)).to(tl.int64)
        begin = batch * g_batch + row.to(tl.int64) * g_row + head.to(tl.int64) * g_head
        left, right = _load_halves(d_out, begin, inside, D, HALF, BH)
        if ROTARY:
            c, s = _angles(cos, sin, row + offset, inside, HALF, BH)
            left, right = left * c + right * s, right * c - left * s
        if NORM:
            begin = batch * x_batch + row.to(tl.int64) * x_row + head * D
            left_x, right_x = _load_halves(x, begin, inside, D, HALF, BH)
            inverse = _inverse_size(left_x, right_x, eps, D)
            left_weight, right_weight = _load_weight(weight, D, HALF, BH)
            left_x, right_x = left_x * inverse, right_x * inverse
            left_sum, right_sum = left_sum + left * left_x, right_sum + right * right_x
            left, right = left * left_weight, right * right_weight
            mean = ((tl.sum(left * left_x, 1) + tl.sum(right * right_x, 1)) / D)[:, None]
            left, right = inverse * (left - left_x * mean), inverse * (right - right_x * mean)
        _store_halves(d_x, vector.to(tl.int64) * D, inside, left, right, D, HALF, BH)
    if NORM:
        tl.store(sums + program * D + column, tl.sum(left_sum, 0), mask=column < HALF)
        tl.store(sums + program * D + HALF + column, tl.sum(right_sum, 0), mask=column < D - HALF)
