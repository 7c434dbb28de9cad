"""Triton kernels on rows: residual sums with dropout and norm, activations with dropout, and their backward passes.

A program takes some rows at a time. Backward programs go over many rows and keep sums of the gradients of weights and
biases; `sum_rows_kernel` adds the sums of all programs, in a fixed order. Dropout masks are not stored: both passes
compute them from a seed and the place of an element.

Shapes: N rows, D columns; tiles of ROWS x BLOCK, where BLOCK is a power of 2. Programs whose tiles are whole rows have
one warp where these fit: no sum over a row leaves it then.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

import triton
import triton.language as tl

from mnemo.ops.cuda.forward_kernels import mixed_bits

NO_NORM, LAYER_NORM, RMS_NORM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
RELU, SQUARED_RELU, GELU, IDENTITY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
NUMBERS = ("site", "dropped")
"""Arguments whose values make no difference to the compiler"""


@triton.jit
def kept_columns(seed, site, rows, columns, dropped, factor):
    """Dropout's factors of a tile: 0 with probability dropped / 65536, else `factor`. See `dropout.hashed_levels`.

    Two neighbouring columns share one random number of 32 bits, which the compiler computes once.
    """
    begin = mixed_bits(rows.to(tl.uint32) ^ mixed_bits(seed.to(tl.uint32) + site.to(tl.uint32) * 0x9E3779B9))
    drawn = mixed_bits(begin + (columns >> 1).to(tl.uint32) * 0x9E3779B9)
    level = (drawn >> ((columns & 1) * 16).to(tl.uint32)) & 0xFFFF
    return tl.where(level >= dropped.to(tl.uint32), factor, 0.0)


@triton.jit
def load_table(TABLE, columns, D: tl.constexpr):
    """A weight or bias (D,) for a tile, fp32."""
    return tl.load(TABLE + columns, mask=columns < D, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=NUMBERS)
def add_norm_kernel(
    X, BRANCH, BRANCH_BIAS, WEIGHT, BIAS, SEED, TOTAL, NORMED, MEAN, SCALE, num_rows, eps, site, dropped, factor,
    HAS_BRANCH: tl.constexpr, HAS_BRANCH_BIAS: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """TOTAL = x + dropout(branch + its bias), and the norm of TOTAL; KEEP: store TOTAL."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    row, column, there = rows[:, None], columns[None, :], rows < num_rows
    mask = (row < num_rows) & (column < D) if BLOCK > D else row < num_rows
    place = row.to(tl.int64) * D + column
    total = tl.load(X + place, mask=mask, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        branch = tl.load(BRANCH + place, mask=mask, other=0.0).to(tl.float32)
        if HAS_BRANCH_BIAS:
            branch += load_table(BRANCH_BIAS, columns, D)[None, :]
        if DROPOUT:
            branch *= kept_columns(tl.load(SEED), site, row, column, dropped, factor)
        rounded = (total + branch).to(X.dtype.element_ty)
        if KEEP:
            tl.store(TOTAL + place, rounded, mask=mask)
        total = rounded.to(tl.float32)  # the backward pass knows no other
    if NORM != NO_NORM:
        total = tl.where(mask, total, 0.0)
        if NORM == LAYER_NORM:
            mean = tl.sum(total, 1) / D
            tl.store(MEAN + rows, mean, mask=there)
            total = tl.where(mask, total - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(total * total, 1) / D + eps)
        tl.store(SCALE + rows, scale, mask=there)
        normed = total * scale[:, None]
        if HAS_WEIGHT:
            normed *= load_table(WEIGHT, columns, D)[None, :]
        if HAS_BIAS:
            normed += load_table(BIAS, columns, D)[None, :]
        tl.store(NORMED + place, normed.to(NORMED.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=NUMBERS)
def add_norm_backward_kernel(
    D_TOTAL, D_NORMED, TOTAL, WEIGHT, SEED, MEAN, SCALE, D_X, D_BRANCH, PARTS, num_rows, site, dropped, factor,
    HAS_D_TOTAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_BRANCH_BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, NORM: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """D_X, the gradient of the total; with dropout, D_BRANCH too. PARTS (3, programs, D): sums of this program for the
    weight, the bias, and the branch's bias. Without a norm D_X is D_TOTAL, and is not stored again."""
    columns = tl.arange(0, BLOCK)
    column = columns[None, :]
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    bias_sum = tl.zeros((BLOCK,), tl.float32)
    branch_sum = tl.zeros((BLOCK,), tl.float32)
    if HAS_WEIGHT:
        weight = load_table(WEIGHT, columns, D)[None, :]
    if DROPOUT:
        seed = tl.load(SEED)
    for first in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        row, there = rows[:, None], rows < num_rows
        mask = (row < num_rows) & (column < D) if BLOCK > D else row < num_rows
        place = row.to(tl.int64) * D + column
        if NORM != NO_NORM:
            d_normed = tl.load(D_NORMED + place, mask=mask, other=0.0).to(tl.float32)
            normed = tl.load(TOTAL + place, mask=mask, other=0.0).to(tl.float32)
            scale = tl.load(SCALE + rows, mask=there, other=0.0)[:, None]
            if NORM == LAYER_NORM:
                normed -= tl.load(MEAN + rows, mask=there, other=0.0)[:, None]
            normed = tl.where(mask, normed * scale, 0.0)
            if HAS_WEIGHT:
                weight_sum += tl.sum(d_normed * normed, 0)
            if HAS_BIAS:
                bias_sum += tl.sum(d_normed, 0)
            if HAS_WEIGHT:
                d_normed *= weight
            d_total = d_normed - normed * (tl.sum(d_normed * normed, 1) / D)[:, None]
            if NORM == LAYER_NORM:
                d_total -= (tl.sum(d_normed, 1) / D)[:, None]
            d_total *= scale
            if HAS_D_TOTAL:
                d_total += tl.load(D_TOTAL + place, mask=mask, other=0.0).to(tl.float32)
            tl.store(D_X + place, d_total.to(D_X.dtype.element_ty), mask=mask)
        else:
            d_total = tl.load(D_TOTAL + place, mask=mask, other=0.0).to(tl.float32)
        if DROPOUT:
            d_total *= kept_columns(seed, site, row, column, dropped, factor)
            tl.store(D_BRANCH + place, d_total.to(D_BRANCH.dtype.element_ty), mask=mask)
        if HAS_BRANCH_BIAS:
            branch_sum += tl.sum(tl.where(mask, d_total, 0.0), 0)
    part = PARTS + tl.program_id(0) * D + columns
    size = tl.num_programs(0) * D
    if HAS_WEIGHT:
        tl.store(part, weight_sum, mask=columns < D)
    if HAS_BIAS:
        tl.store(part + size, bias_sum, mask=columns < D)
    if HAS_BRANCH_BIAS:
        tl.store(part + 2 * size, branch_sum, mask=columns < D)


@triton.jit
def sum_parts(PARTS, TOTAL, num_parts, table, columns, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """TOTAL = the sum of the parts of one table, in the type of TOTAL."""
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for begin in range(0, num_parts, ROWS):
        parts = begin + tl.arange(0, ROWS)
        place = (table * num_parts + parts)[:, None] * D + columns[None, :]
        total += tl.load(PARTS + place, mask=(parts < num_parts)[:, None] & (columns < D)[None, :], other=0.0)
    tl.store(TOTAL + columns, tl.sum(total, 0).to(TOTAL.dtype.element_ty), mask=columns < D)


@triton.jit
def sum_rows_kernel(
    PARTS, FIRST, SECOND, THIRD, num_parts, HAS_FIRST: tl.constexpr, HAS_SECOND: tl.constexpr, HAS_THIRD: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of the parts (3, num_parts, D) of the tables that exist."""
    table, columns = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HAS_FIRST:
        if table == 0:
            sum_parts(PARTS, FIRST, num_parts, table, columns, D, BLOCK, ROWS)
    if HAS_SECOND:
        if table == 1:
            sum_parts(PARTS, SECOND, num_parts, table, columns, D, BLOCK, ROWS)
    if HAS_THIRD:
        if table == 2:
            sum_parts(PARTS, THIRD, num_parts, table, columns, D, BLOCK, ROWS)


@triton.jit(do_not_specialize=NUMBERS)
def activation_kernel(
    Z, BIAS, SEED, OUT, num_rows, site, dropped, factor,
    HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, ACTIVATION: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """OUT = dropout(activation(z + bias))."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (rows < num_rows) & (columns < D) if D % BLOCK else rows < num_rows
    place = rows.to(tl.int64) * D + columns
    x = tl.load(Z + place, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += load_table(BIAS, columns, D)
    if ACTIVATION == GELU:
        out = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == IDENTITY:
        out = x
    else:
        out = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if ACTIVATION == SQUARED_RELU:
            out *= out
    if DROPOUT:
        out *= kept_columns(tl.load(SEED), site, rows, columns, dropped, factor)
    tl.store(OUT + place, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=NUMBERS)
def activation_backward_kernel(
    D_OUT, KEPT, BIAS, SEED, D_Z, PARTS, num_rows, site, dropped, factor,
    HAS_BIAS: tl.constexpr, DROPOUT: tl.constexpr, ACTIVATION: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """D_Z, and sums of it for the bias, (programs, D). KEPT is z for gelu, nothing for the identity, and the output for
    the others: what was dropped or negative is zero there, and the rest is known from it."""
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    bias_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = (first + tl.arange(0, ROWS))[:, None]
        mask = (rows < num_rows) & (columns < D) if D % BLOCK else rows < num_rows
        place = rows.to(tl.int64) * D + columns
        d_out = tl.load(D_OUT + place, mask=mask, other=0.0).to(tl.float32)
        if ACTIVATION != IDENTITY:
            x = tl.load(KEPT + place, mask=mask, other=0.0).to(tl.float32)
        if (ACTIVATION == GELU or ACTIVATION == IDENTITY) and DROPOUT:
            d_out *= kept_columns(tl.load(SEED), site, rows, columns, dropped, factor)
        if ACTIVATION == IDENTITY:
            d_z = d_out
        elif ACTIVATION == GELU:
            if HAS_BIAS:
                x += load_table(BIAS, columns, D)
            density = tl.exp(-0.5 * x * x) * 0.3989422804014327
            d_z = d_out * (0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density)
        elif ACTIVATION == SQUARED_RELU:
            d_z = d_out * 2.0 * tl.sqrt(x * factor)  # out = factor * relu(z)^2
        else:
            d_z = tl.where(x <= 0.0, 0.0, d_out * factor)
        tl.store(D_Z + place, d_z.to(D_Z.dtype.element_ty), mask=mask)
        if HAS_BIAS:
            bias_sum += tl.where(mask, d_z, 0.0)
    if HAS_BIAS:
        tl.store(PARTS + tl.program_id(0) * D + columns, tl.sum(bias_sum, 0)[None, :], mask=columns < D)
