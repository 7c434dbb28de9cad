"""The kernels on rows as PyTorch operators with gradients: for autograd, torch.compile and CUDA graphs.

Tensors are (..., D), and every operator takes them as rows (N, D).
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# The launcher of a kernel takes other arguments than the kernel.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from mnemo.ops.cuda import row_kernels as kernels
from mnemo.ops.dropout import LEVELS

NORMS = {"none": kernels.NO_NORM, "layer": kernels.LAYER_NORM, "rms": kernels.RMS_NORM}
ACTIVATIONS = {
    "relu": kernels.RELU,
    "squared_relu": kernels.SQUARED_RELU,
    "gelu": kernels.GELU,
    "identity": kernels.IDENTITY,
}
LARGEST_WIDTH = 8192
"""A tile of rows that are normalised holds whole rows."""


def power_of_two(count: int) -> int:
    """The smallest power of 2 that is not less."""
    return 1 << (count - 1).bit_length()


class Tiling(NamedTuple):
    """How much a program takes at once."""

    elements: int
    warps: int
    programs: int = 1
    """Of a backward pass, for each processor: each program writes a row of sums"""

    def whole_rows(self, width: int) -> dict[str, Any]:
        """Options of a kernel whose tiles are whole rows."""
        block = power_of_two(width)
        warps = max(self.warps, min(16, block // WARP_COLUMNS))
        return {"D": width, "BLOCK": block, "ROWS": self.rows(block), "num_warps": warps}

    def columns(self, width: int) -> dict[str, Any]:
        """Options of a kernel whose tiles are parts of rows."""
        block = min(BLOCK, power_of_two(width))
        return {"D": width, "BLOCK": block, "ROWS": self.rows(block), "num_warps": self.warps}

    def rows(self, block: int) -> int:
        """Rows of a tile, whatever the number of rows: so no row's result depends on the other rows."""
        return max(1, self.elements // block)


FORWARD = Tiling(elements=512, warps=1)
BACKWARD = Tiling(elements=1024, warps=1, programs=8)
ACTIVATION = Tiling(elements=4096, warps=4)
ACTIVATION_BACKWARD = Tiling(elements=4096, warps=4, programs=4)
WARP_COLUMNS = 1024
"""Columns of a row that one warp normalises"""
BLOCK = 512
"""Columns of a tile of activations"""
INTERPRETED_PROCESSORS = 1
LEAST_TILES = 4
"""Of a backward program: with fewer, adding up the sums of all programs would take as long as the rest."""
SUM_ROWS, SUM_BLOCK, SUM_WARPS = 512, 8, 8


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def as_rows(x: Tensor) -> Tensor:
    return x.contiguous().view(-1, x.shape[-1])


def dense(table: Tensor | None) -> Tensor | None:
    return None if table is None else table.contiguous()


def dropping(rate: float) -> tuple[int, float]:
    """Of 65536 random levels, the number that are dropped; and the factor of the rest."""
    dropped = round(rate * LEVELS)
    return dropped, LEVELS / (LEVELS - dropped)


def totals(parts: Tensor, tables: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients of three tables (D,), each in its type, from their parts (3, N, D); empty for absent ones."""
    found = [parts.new_empty(0) if table is None else table.new_empty(table.shape) for table in tables]
    present = dict(zip(("HAS_FIRST", "HAS_SECOND", "HAS_THIRD"), (table is not None for table in tables), strict=True))
    if any(present.values()):
        grid = (triton.cdiv(parts.shape[2], SUM_BLOCK), 3)
        kernels.sum_rows_kernel[grid](
            parts,
            *found,
            parts.shape[1],
            **present,
            D=parts.shape[2],
            BLOCK=SUM_BLOCK,
            ROWS=SUM_ROWS,
            num_warps=SUM_WARPS,
        )
    return found


def _no_gradients(like: Tensor, tables: Sequence[Tensor | None]) -> list[Tensor]:
    """Gradients of tables for no rows at all."""
    return [like.new_empty(0) if table is None else table.new_zeros(table.shape) for table in tables]


ADD_NORM = (
    "Tensor x, Tensor? branch, Tensor? branch_bias, Tensor? weight, Tensor? bias, Tensor? seed, int site, float rate, "
    "str norm, float eps"
)


@torch.library.custom_op(
    "mnemo::add_norm", mutates_args=(), schema=f"({ADD_NORM}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
)
def add_norm(
    x: Tensor, branch: Tensor | None, branch_bias: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    seed: Tensor | None, site: int, rate: float, norm: str, eps: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """total = x + dropout(branch + branch_bias), norm(total), and the rows' means and scales, fp32.

    What does not exist is empty: the total without a branch or `keep`; the rest without a norm.
    """
    total, normed, mean, scale = found = _empty_outputs(x, branch, norm, keep)
    if x.numel() == 0:
        return found
    rows, dropped, factor = as_rows(x), *dropping(rate)
    tile = FORWARD.whole_rows(x.shape[-1])
    kernels.add_norm_kernel[(triton.cdiv(len(rows), tile["ROWS"]),)](
        rows, None if branch is None else as_rows(branch), dense(branch_bias), dense(weight), dense(bias),
        seed, total, normed, mean, scale, len(rows), eps, site, dropped, factor,
        HAS_BRANCH=branch is not None, HAS_BRANCH_BIAS=branch_bias is not None, HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None, DROPOUT=rate > 0, NORM=NORMS[norm], KEEP=total.numel() > 0, **tile,
    )  # fmt: skip
    return found


def _empty_outputs(x: Tensor, branch: Tensor | None, norm: str, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def made(shape: Sequence[int], dtype: torch.dtype, exists: bool) -> Tensor:
        return torch.empty(shape if exists else (0,), dtype=dtype, device=x.device)

    has_norm, statistics = norm != "none", x.shape[:-1]
    return (
        made(x.shape, x.dtype, branch is not None and keep),
        made(x.shape, x.dtype, has_norm),
        made(statistics, torch.float32, norm == "layer"),
        made(statistics, torch.float32, has_norm),
    )


@add_norm.register_fake
def _(x, branch, branch_bias, weight, bias, seed, site, rate, norm, eps, keep):
    return _empty_outputs(x, branch, norm, keep)


@torch.library.custom_op(
    "mnemo::add_norm_backward",
    mutates_args=(),
    schema="(Tensor? d_total, Tensor? d_normed, Tensor total, Tensor mean, Tensor scale, Tensor? branch_bias, "
    "Tensor? weight, Tensor? bias, Tensor? seed, int site, float rate, str norm) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def add_norm_backward(
    d_total: Tensor | None, d_normed: Tensor | None, total: Tensor, mean: Tensor, scale: Tensor,
    branch_bias: Tensor | None, weight: Tensor | None, bias: Tensor | None, seed: Tensor | None, site: int,
    rate: float, norm: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, branch, branch_bias, weight and bias; empty where they do not exist, or equal another one: that
    of x without a norm is `d_total`, that of the branch without dropout is that of x."""
    given = d_normed if d_total is None else d_total
    assert given is not None
    d_x, d_branch = _empty_gradients(given, rate, norm)
    tables = (weight, bias, branch_bias)
    if given.numel() == 0:
        d_weight, d_bias, d_branch_bias = _no_gradients(given, tables)
        return d_x, d_branch, d_branch_bias, d_weight, d_bias
    num_rows, width = as_rows(given).shape
    tile, (dropped, factor) = BACKWARD.whole_rows(width), dropping(rate)
    most = BACKWARD.programs * processors(given.device)
    programs = min(triton.cdiv(num_rows, tile["ROWS"] * LEAST_TILES), most)
    parts = torch.empty(3, programs, width, dtype=torch.float32, device=given.device)
    kernels.add_norm_backward_kernel[(programs,)](
        None if d_total is None else as_rows(d_total), None if d_normed is None else as_rows(d_normed),
        as_rows(total) if total.numel() else total, dense(weight), seed, mean, scale, d_x, d_branch, parts,
        num_rows, site, dropped, factor,
        HAS_D_TOTAL=d_total is not None, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
        HAS_BRANCH_BIAS=branch_bias is not None, DROPOUT=rate > 0, NORM=NORMS[norm], **tile,
    )  # fmt: skip
    d_weight, d_bias, d_branch_bias = totals(parts, tables)
    return d_x, d_branch, d_branch_bias, d_weight, d_bias


def _empty_gradients(given: Tensor, rate: float, norm: str) -> tuple[Tensor, Tensor]:
    """Buffers for the gradients of x and branch, of the shape and type of a given gradient."""

    def made(exists: bool) -> Tensor:
        return torch.empty(given.shape if exists else (0,), dtype=given.dtype, device=given.device)

    return made(norm != "none"), made(rate > 0)


@add_norm_backward.register_fake
def _(d_total, d_normed, total, mean, scale, branch_bias, weight, bias, seed, site, rate, norm):
    given = d_normed if d_total is None else d_total
    tables = (x.new_empty(x.shape) if x is not None else given.new_empty(0) for x in (branch_bias, weight, bias))
    return *_empty_gradients(given, rate, norm), *tables


def _save_add_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, branch, branch_bias, weight, bias, seed, site, rate, norm, _, _ = inputs
    total, normed, mean, scale = output
    ctx.mark_non_differentiable(mean, scale)
    ctx.set_materialize_grads(False)
    ctx.has_branch, ctx.site, ctx.rate, ctx.norm = branch is not None, site, rate, norm
    summed = total if branch is not None else x
    ctx.save_for_backward(None if norm == "none" else summed, mean, scale, branch_bias, weight, bias, seed)


def _differentiate_add_norm(
    ctx: Any, d_total: Tensor | None, d_normed: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    summed, mean, scale, branch_bias, weight, bias, seed = ctx.saved_tensors
    d_total = d_total if ctx.has_branch else None
    norm = ctx.norm if d_normed is not None and ctx.norm != "none" else "none"
    if norm == "none" and d_total is None:
        return (None,) * 11
    if norm == "none" and branch_bias is None and ctx.rate == 0:
        return (d_total, d_total, *[None] * 9)
    given = d_normed if norm != "none" else None
    summed = mean if summed is None else summed
    tables = (branch_bias, weight, bias) if norm != "none" else (branch_bias, None, None)
    d_x, d_branch, *found = add_norm_backward(
        d_total, given, summed, mean, scale, *tables, seed, ctx.site, ctx.rate, norm
    )
    d_x = d_total if norm == "none" else d_x
    d_branch = (d_branch if ctx.rate else d_x) if ctx.has_branch else None
    gradients = [None if table is None else gradient for table, gradient in zip(tables, found, strict=True)]
    return d_x, d_branch, *gradients, *[None] * 6


add_norm.register_autograd(_differentiate_add_norm, setup_context=_save_add_norm)


@torch.library.custom_op(
    "mnemo::activation",
    mutates_args=(),
    schema="(Tensor z, Tensor? bias, Tensor? seed, int site, float rate, str kind) -> Tensor",
)
def activation(z: Tensor, bias: Tensor | None, seed: Tensor | None, site: int, rate: float, kind: str) -> Tensor:
    """dropout(activation(z + bias))."""
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    if z.numel() == 0:
        return out
    rows, dropped, factor = as_rows(z), *dropping(rate)
    (num_rows, width), tile = rows.shape, ACTIVATION.columns(z.shape[-1])
    kernels.activation_kernel[triton.cdiv(num_rows, tile["ROWS"]), triton.cdiv(width, tile["BLOCK"])](
        rows, dense(bias), seed, out, num_rows, site, dropped, factor, HAS_BIAS=bias is not None, DROPOUT=rate > 0,
        ACTIVATION=ACTIVATIONS[kind], **tile,
    )  # fmt: skip
    return out


@activation.register_fake
def _(z, bias, seed, site, rate, kind):
    return torch.empty(z.shape, dtype=z.dtype, device=z.device)


@torch.library.custom_op(
    "mnemo::activation_backward",
    mutates_args=(),
    schema="(Tensor d_out, Tensor? kept, Tensor? bias, Tensor? seed, int site, float rate, str kind) -> "
    "(Tensor, Tensor)",
)
def activation_backward(
    d_out: Tensor, kept: Tensor | None, bias: Tensor | None, seed: Tensor | None, site: int, rate: float, kind: str
) -> tuple[Tensor, Tensor]:
    """Gradients of z and bias; `kept`: z for gelu, nothing for the identity, the output for the others."""
    d_z = torch.empty(d_out.shape, dtype=d_out.dtype, device=d_out.device)
    if d_out.numel() == 0:
        return d_z, _no_gradients(d_out, [bias])[0]
    rows, dropped, factor = as_rows(d_out), *dropping(rate)
    (num_rows, width), tile = rows.shape, ACTIVATION_BACKWARD.columns(d_out.shape[-1])
    across = triton.cdiv(width, tile["BLOCK"])
    most = max(1, ACTIVATION_BACKWARD.programs * processors(d_out.device) // across)
    programs = min(triton.cdiv(num_rows, tile["ROWS"]), most)
    parts = torch.empty(1, programs, width, dtype=torch.float32, device=d_out.device)
    kernels.activation_backward_kernel[programs, across](
        rows, None if kept is None else as_rows(kept), dense(bias), seed, d_z, parts, num_rows, site, dropped, factor,
        HAS_BIAS=bias is not None, DROPOUT=rate > 0, ACTIVATION=ACTIVATIONS[kind], **tile,
    )  # fmt: skip
    return d_z, totals(parts, [bias, None, None])[0]


@activation_backward.register_fake
def _(d_out, kept, bias, seed, site, rate, kind):
    d_z = torch.empty(d_out.shape, dtype=d_out.dtype, device=d_out.device)
    return d_z, d_out.new_empty(0) if bias is None else bias.new_empty(bias.shape)


def _save_activation(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    z, bias, seed, *ctx.numbers = inputs
    kept = {"gelu": z, "identity": None}.get(inputs[-1], output)
    ctx.save_for_backward(kept, bias, seed)


def _differentiate_activation(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    kept, bias, seed = ctx.saved_tensors
    d_z, d_bias = activation_backward(d_out, kept, bias, seed, *ctx.numbers)
    return d_z, None if bias is None else d_bias, None, None, None, None


activation.register_autograd(_differentiate_activation, setup_context=_save_activation)
