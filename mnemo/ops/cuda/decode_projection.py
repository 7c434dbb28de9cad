"""Triton kernels of a decoded token's matrix products, for few rows: what comes before and after them is included.

A product of few rows takes as long as loading its weights, and each further kernel takes microseconds. So the programs
of one kernel compute the rows again that they all need: the norm of a residual sum, or the attention's contexts.

Shapes: B rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.errors import one_line
from mnemo.ops.cuda import decode_kernels, early_start
from mnemo.ops.cuda.decode_kernels import TOLERANCE, Parts, power_of_two, supports, trusted

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]

    from mnemo.ops.cuda.decode_kernels import LOWEST
    from mnemo.ops.cuda.early_start import let_next_start, prefetch, wait_for_previous
except ImportError:
    triton = None

LARGEST_WIDTH = 2048
"""Bytes of a row that is computed in the same kernel as its product: rows and weights must fit in shared memory"""
LARGEST_ROWS = 16
ROW_BLOCK, OUTPUTS, EARLY_OUTPUTS, WARPS = 16, 16, 32, 4
"""Rows and outputs of a program on the tensor cores, which a single row does not use; outputs with an early start"""
ROW_PROGRAMS, ROW_TILE, ROW_WARPS = 384, 2048, 1
"""Programs of the product of a single row, and weights of one of them; one warp needs no barriers"""
PARTS_PROGRAMS, EARLY_PARTS_PROGRAMS, PARTS_TILE, PARTS_WARPS = 128, 64, 8192, 8
"""The same if the row consists of parts, which every program adds up; programs with an early start"""
Activation = Literal["relu", "gelu", "squared_relu"]


class Norm(NamedTuple):
    """A layer norm, or without a shift an RMS norm."""

    gain: Tensor
    shift: Tensor | None
    eps: float


def suit(x: Tensor, batch: int, width: int) -> bool:
    """Whether the kernels support `batch` rows of this width, in the type and on the device of x."""
    if not supports(x) or batch > LARGEST_ROWS or width * x.element_size() > LARGEST_WIDTH:
        return False
    if decode_kernels.INTERPRETED:
        return x.dtype != torch.bfloat16  # Triton's interpreter multiplies the bits of bf16 as integers
    return works(x.device, x.dtype)


_found: dict[tuple[torch.device, torch.dtype], bool] = {}


def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels agree with plain PyTorch there: one test, and one warning with the reason if not."""
    return trusted(_found, device, dtype, _failure, "few rows are decoded by more kernels, which is slower")


def _failure(device: torch.device, dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x, branch, gain, shift, weight = draw(3, 128), draw(3, 128), draw(128), draw(128), draw(48, 128)
    total = (x + branch).float()
    normed = F.layer_norm(total, (128,), gain.float(), shift.float(), 1e-5) @ weight.float().T
    try:
        several, norm = project(x, weight), Norm(gain, shift, 1e-5)
        one = project_normed(x[:1], branch[:1], norm, weight, keep_sum=False)[1]
        all_rows = project_normed(x, branch, norm, weight, keep_sum=False)[1]
    except Exception as error:  # any compiler error: other kernels are used instead
        return f"{type(error).__name__}: {one_line(error)}"
    pairs = ((several, x.float() @ weight.float().T), (one, normed[:1]), (all_rows, normed))
    error = max(float((got.float() - want).norm() / want.norm()) for got, want in pairs)
    return None if error < TOLERANCE[dtype] else f"its kernels are off by {error:.1e}"


def sums_parts(batch: int, head_dim: int) -> bool:
    """Whether `project_parts` suits: its programs sum the parts of all heads, which is little work for one row only."""
    return batch == 1 and head_dim == power_of_two(head_dim)


if triton is not None:

    @triton.jit
    def _gain_and_shift(gain_ptr, shift_ptr, K: tl.constexpr, BLOCK_K: tl.constexpr, HAS_SHIFT: tl.constexpr):
        at = tl.arange(0, BLOCK_K)
        gain = tl.load(gain_ptr + at, mask=at < K, other=0.0).to(tl.float32)
        shift = gain
        if HAS_SHIFT:
            shift = tl.load(shift_ptr + at, mask=at < K, other=0.0).to(tl.float32)
        return gain, shift

    @triton.jit
    def _residual_sums(
        x_ptr, branch_ptr, carry_ptr, rows, batch, K: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BRANCH: tl.constexpr
    ):
        """Rows (M, K), rounded as they are stored."""
        at = tl.arange(0, BLOCK_K)
        known = (rows < batch)[:, None] & (at < K)[None, :]
        place = rows[:, None] * K + at[None, :]
        x = tl.load(x_ptr + place, mask=known, other=0.0).to(tl.float32)
        if HAS_BRANCH:
            x += tl.load(branch_ptr + place, mask=known, other=0.0).to(tl.float32)
            x = x.to(carry_ptr.dtype.element_ty).to(tl.float32)
        return x

    @triton.jit
    def _normed_rows(
        x,
        gain,
        shift,
        carry_ptr,
        rows,
        batch,
        eps,
        K: tl.constexpr,
        BLOCK_K: tl.constexpr,
        HAS_SHIFT: tl.constexpr,
        KEEP_SUM: tl.constexpr,
    ):
        """Norms (M, K) of residual sums x; the first program stores them, or the sums."""
        at = tl.arange(0, BLOCK_K)
        known = (rows < batch)[:, None] & (at < K)[None, :]
        centred = x
        if HAS_SHIFT:
            centred = tl.where(known, x - (tl.sum(x, 1) / K)[:, None], 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / K + eps)
        normed = centred * scale[:, None] * gain[None, :]
        if HAS_SHIFT:
            normed += shift[None, :]
        if tl.program_id(0) == 0:
            kept = x if KEEP_SUM else normed
            tl.store(carry_ptr + rows[:, None] * K + at[None, :], kept.to(carry_ptr.dtype.element_ty), mask=known)
        return normed

    @triton.jit
    def _contexts(
        sums_ptr,
        stats_ptr,
        row,
        num_parts,
        HEAD: tl.constexpr,
        K: tl.constexpr,
        BLOCK_K: tl.constexpr,
        BLOCK_S: tl.constexpr,
    ):
        """Contexts (1, K) of one row: all heads of size HEAD, a power of two."""
        heads, parts, dims = tl.arange(0, BLOCK_K // HEAD), tl.arange(0, BLOCK_S), tl.arange(0, HEAD)
        there = heads < K // HEAD
        known = (parts < num_parts)[:, None] & there[None, :]
        first = (row * (K // HEAD) + heads)[None, :] * num_parts + parts[:, None]
        largest = tl.load(stats_ptr + 2 * first, mask=known, other=LOWEST)
        totals = tl.load(stats_ptr + 2 * first + 1, mask=known, other=0.0)
        place = first[:, :, None] * HEAD + dims[None, None, :]
        sums = tl.load(sums_ptr + place, mask=known[:, :, None], other=0.0)
        weight = tl.exp2(largest - tl.max(largest, 0)[None, :])
        weight = weight / tl.where(there, tl.sum(totals * weight, 0), 1.0)[None, :]
        return tl.reshape(tl.sum(sums * weight[:, :, None], 0), (1, BLOCK_K))

    @triton.jit
    def _activated(y, ACTIVATION: tl.constexpr):
        if ACTIVATION == "relu":
            y = tl.maximum(y, 0.0)
        if ACTIVATION == "gelu":
            y = 0.5 * y * (1.0 + tl.math.erf(y * 0.7071067811865476))
        if ACTIVATION == "squared_relu":
            y = tl.maximum(y, 0.0)
            y = y * y
        return y

    @triton.jit
    def _project_row(
        x_ptr,
        branch_ptr,
        gain_ptr,
        shift_ptr,
        carry_ptr,
        sums_ptr,
        stats_ptr,
        weight_ptr,
        bias_ptr,
        out_ptr,
        eps,
        batch,
        num_parts,
        K: tl.constexpr,
        N: tl.constexpr,
        HEAD: tl.constexpr,
        BLOCK_K: tl.constexpr,
        BLOCK_N: tl.constexpr,
        BLOCK_S: tl.constexpr,
        SOURCE: tl.constexpr,
        HAS_BRANCH: tl.constexpr,
        HAS_SHIFT: tl.constexpr,
        KEEP_SUM: tl.constexpr,
        HAS_BIAS: tl.constexpr,
        ACTIVATION: tl.constexpr,
        EARLY: tl.constexpr,
    ):
        """One row, multiplied without tensor cores."""
        let_next_start(EARLY)
        row = tl.program_id(1)
        at, outs = tl.arange(0, BLOCK_K), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        wanted = (outs < N)[:, None] & (at < K)[None, :]
        weight = tl.load(weight_ptr + outs[:, None] * K + at[None, :], mask=wanted, other=0.0)
        y = tl.zeros((BLOCK_N,), tl.float32)
        if HAS_BIAS:
            y = tl.load(bias_ptr + outs, mask=outs < N, other=0.0).to(tl.float32)
        if SOURCE == "norm":
            rows = row + tl.arange(0, 1)
            gain, shift = _gain_and_shift(gain_ptr, shift_ptr, K, BLOCK_K, HAS_SHIFT)
            wait_for_previous(EARLY)
            x = _residual_sums(x_ptr, branch_ptr, carry_ptr, rows, batch, K, BLOCK_K, HAS_BRANCH)
            x = _normed_rows(x, gain, shift, carry_ptr, rows, batch, eps, K, BLOCK_K, HAS_SHIFT, KEEP_SUM)
        elif SOURCE == "parts":
            wait_for_previous(EARLY)
            x = _contexts(sums_ptr, stats_ptr, row, num_parts, HEAD, K, BLOCK_K, BLOCK_S)
        else:
            wait_for_previous(EARLY)
            x = tl.load(x_ptr + row * K + at, mask=at < K, other=0.0)[None, :]
        x = x.to(weight_ptr.dtype.element_ty).to(tl.float32)
        y += tl.sum(weight.to(tl.float32) * x, 1)
        y = _activated(y, ACTIVATION)
        tl.store(out_ptr + row * N + outs, y.to(out_ptr.dtype.element_ty), mask=outs < N)

    @triton.jit
    def _project_rows(
        x_ptr,
        branch_ptr,
        gain_ptr,
        shift_ptr,
        carry_ptr,
        weight_ptr,
        bias_ptr,
        out_ptr,
        eps,
        batch,
        K: tl.constexpr,
        N: tl.constexpr,
        BLOCK_K: tl.constexpr,
        BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
        PARTS: tl.constexpr,
        SOURCE: tl.constexpr,
        HAS_BRANCH: tl.constexpr,
        HAS_SHIFT: tl.constexpr,
        KEEP_SUM: tl.constexpr,
        HAS_BIAS: tl.constexpr,
        ACTIVATION: tl.constexpr,
        EARLY: tl.constexpr,
        PREFETCHED: tl.constexpr,
    ):
        """Several rows. Each warp multiplies its part of the inputs, so that no warp has a long chain of products."""
        let_next_start(EARLY)
        rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
        outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        part = tl.arange(0, PARTS)[:, None, None] * (BLOCK_K // PARTS)
        inner = part + tl.arange(0, BLOCK_K // PARTS)[None, :, None]  # (P, K / P, 1)
        weights_ptr = weight_ptr + outs[None, None, :] * K
        inside = (outs < N)[None, None, :]
        if SOURCE == "norm":
            if not EARLY:
                x = _residual_sums(x_ptr, branch_ptr, carry_ptr, rows, batch, K, BLOCK_K, HAS_BRANCH)
            weight = tl.load(weights_ptr + inner, mask=(inner < K) & inside, other=0.0)
            if HAS_BIAS:
                bias = tl.load(bias_ptr + outs, mask=outs < N, other=0.0)
            gain, shift = _gain_and_shift(gain_ptr, shift_ptr, K, BLOCK_K, HAS_SHIFT)  # type: ignore[misc]
            if EARLY:
                wait_for_previous(EARLY)
                x = _residual_sums(x_ptr, branch_ptr, carry_ptr, rows, batch, K, BLOCK_K, HAS_BRANCH)
            x = _normed_rows(x, gain, shift, carry_ptr, rows, batch, eps, K, BLOCK_K, HAS_SHIFT, KEEP_SUM)
            x = x.to(weight_ptr.dtype.element_ty)
            x = tl.permute(tl.reshape(x, (BLOCK_M, PARTS, BLOCK_K // PARTS)), (1, 0, 2))
            products = tl.dot(x, weight, input_precision="ieee")
        else:
            across = part + tl.arange(0, BLOCK_K // PARTS)[None, None, :]  # (P, 1, K / P)
            known = (rows < batch)[None, :, None]
            rows_ptr = x_ptr + rows[None, :, None] * K
            if HAS_BIAS:
                bias = tl.load(bias_ptr + outs, mask=outs < N, other=0.0)
            if PREFETCHED:
                # All weights of the program, which lie together; the programs of further rows have the same weights.
                LINES: tl.constexpr = BLOCK_N * K // PREFETCHED
                first = tl.program_id(0) * BLOCK_N * K + tl.arange(0, LINES) * PREFETCHED
                item_bytes: tl.constexpr = weight_ptr.dtype.element_ty.primitive_bitwidth // 8
                prefetch(weight_ptr + tl.minimum(first, N * K - PREFETCHED), PREFETCHED * item_bytes)
            wait_for_previous(EARLY)
            products = tl.zeros((PARTS, BLOCK_M, BLOCK_N), tl.float32)
            # In a loop, loads go to shared memory ahead; otherwise few of them are under way at the same time.
            for start in tl.range(0, K, BLOCK_K, num_stages=4):
                weight = tl.load(weights_ptr + (start + inner), mask=(start + inner < K) & inside, other=0.0)
                x = tl.load(rows_ptr + (start + across), mask=(start + across < K) & known, other=0.0)
                products = tl.dot(x, weight, products, input_precision="ieee")
        y = tl.sum(products, 0)
        if HAS_BIAS:
            y += bias.to(tl.float32)[None, :]
        y = _activated(y, ACTIVATION)
        target = out_ptr + rows[:, None] * N + outs[None, :]
        tl.store(target, y.to(out_ptr.dtype.element_ty), mask=(rows < batch)[:, None] & (outs < N)[None, :])


class _Rows(NamedTuple):
    """What the rows of a product are computed from."""

    kind: Literal["plain", "norm", "parts"]
    batch: int
    x: Tensor | None = None
    branch: Tensor | None = None
    norm: Norm | None = None
    keep_sum: bool = False
    parts: Parts | None = None


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
    """The activation of x W^T + bias, for rows x (B, K) and weights (N, K)."""
    return _product(_Rows("plain", len(x), x), weight, bias, activation)[1]


def project_normed(
    x: Tensor,
    branch: Tensor | None,
    norm: Norm,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    *,
    keep_sum: bool,
) -> tuple[Tensor, Tensor]:
    """As `project`, of the norm of the residual sum x + branch; the first result is that norm, or the sum."""
    return _product(_Rows("norm", len(x), x, branch, norm, keep_sum), weight, bias, activation)


def project_parts(parts: Parts, batch: int, weight: Tensor) -> Tensor:
    """As `project`, of attention's contexts (B, H * d), which consist of parts; best for one row."""
    return _product(_Rows("parts", batch, parts=parts), weight, None, None)[1]


def _product(rows: _Rows, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> tuple[Tensor, Tensor]:
    """Normed rows or residual sums, unless rows are given, and the product."""
    num_outputs, width = weight.shape
    out, norm = weight.new_empty(rows.batch, num_outputs), rows.norm
    carry = weight.new_empty(rows.batch if norm else 0, width)
    gain, shift, eps = norm or (None, None, 0.0)
    # Arguments that a kernel does not use are replaced by any pointer.
    inputs = [weight if one is None else one.contiguous() for one in (rows.x, rows.branch, gain, shift)]
    outputs = (weight, weight if bias is None else bias, out, eps, rows.batch)
    options = {
        "K": width,
        "N": num_outputs,
        "SOURCE": rows.kind,
        "HAS_BRANCH": rows.branch is not None,
        "HAS_SHIFT": shift is not None,
        "KEEP_SUM": rows.keep_sum,
        "HAS_BIAS": bias is not None,
        "ACTIVATION": activation,
        **early_start.launch_options(weight, bias, gain, shift),
    }
    launch = _multiply_row if rows.batch == 1 or rows.parts is not None else _multiply_rows
    launch(rows, (*inputs, carry), outputs, options)
    return carry, out


def _multiply_row(rows: _Rows, inputs: Sequence[Any], outputs: Sequence[Any], options: dict[str, Any]) -> None:
    """Row by row; as many programs as keep a GPU busy."""
    weight, num_outputs = outputs[0], options["N"]
    programs, tile, warps = ROW_PROGRAMS, ROW_TILE, ROW_WARPS
    if rows.parts is not None:
        programs = EARLY_PARTS_PROGRAMS if options["EARLY"] else PARTS_PROGRAMS
        tile, warps = PARTS_TILE, PARTS_WARPS
    block_k = power_of_two(options["K"])
    block_n = max(1, min(tile // block_k, _floor_power_of_two(num_outputs // programs)))
    sums, stats, num_parts = rows.parts or (weight, weight, 1)
    cast(Any, _project_row)[(-(-num_outputs // block_n), rows.batch)](
        *inputs,
        sums,
        stats,
        *outputs,
        num_parts,
        HEAD=sums.shape[-1],
        BLOCK_K=block_k,
        BLOCK_N=block_n,
        BLOCK_S=power_of_two(num_parts),
        num_warps=warps,
        **options,
    )


def _multiply_rows(rows: _Rows, inputs: Sequence[Any], outputs: Sequence[Any], options: dict[str, Any]) -> None:
    """All rows at once, on the tensor cores."""
    block_k = power_of_two(options["K"])
    if rows.kind == "plain":
        block_k = min(1024 // outputs[0].element_size(), block_k // 4)
    block_k = max(16 * WARPS, block_k)
    outputs_of_one = EARLY_OUTPUTS if options["EARLY"] else OUTPUTS
    early = options["EARLY"] and rows.kind == "plain"
    cast(Any, _project_rows)[(-(-options["N"] // outputs_of_one), -(-rows.batch // ROW_BLOCK))](
        *inputs,
        *outputs,
        BLOCK_K=block_k,
        BLOCK_M=ROW_BLOCK,
        BLOCK_N=outputs_of_one,
        PARTS=WARPS,
        PREFETCHED=_prefetched(options["K"], outputs[0].element_size()) if early else 0,
        num_warps=WARPS,
        **options,
    )


def _prefetched(width: int, item_bytes: int) -> int:
    """Weights that each thread of a program prefetches; 0 if those of a program cannot be divided evenly."""
    share = EARLY_OUTPUTS * width // (32 * WARPS)
    return share if width == power_of_two(width) and share * item_bytes % 16 == 0 else 0


def _floor_power_of_two(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)
