"""The kernels of `head_kernels.py` as a PyTorch operator with gradients, and the test before their first use.

Shapes: B batch, T rows, H heads, d head size.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# The launcher of a kernel takes other arguments than the kernel.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mnemo.ops.cuda import head_kernels as kernels
from mnemo.ops.cuda.dispatch import DTYPES, LARGEST_HEAD, TOLERANCE, relative_error
from mnemo.ops.cuda.self_test import SelfTest
from mnemo.ops.heads import place_heads_plain
from mnemo.ops.rotary import rotary_angles

TILE = 2048
"""Elements of one half of a program's vectors"""
PROGRAMS = 1024
"""Programs of a backward pass, at most: each adds up a part of the weight's gradient"""


def _sizes(x: Tensor, num_heads: int) -> dict[str, int]:
    size = x.shape[-1] // num_heads
    half = (size + 1) // 2
    return {"H": num_heads, "D": size, "HALF": half, "BH": _power_of_two(half), "BM": _tile(size)}


def _tile(size: int) -> int:
    """Vectors of a program's tile."""
    return max(1, TILE // _power_of_two((size + 1) // 2))


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op("mnemo::place_heads", mutates_args=())
def place_heads(
    x: Tensor,
    num_heads: int,
    weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    offset: int,
) -> Tensor:
    """Rows (B, T, H * d) as heads (B, H, T, d), normalised if there is a weight (d,), rotated if there are tables."""
    x, sizes = _rows(x), _sizes(x, num_heads)
    batch, rows, _ = x.shape
    out = x.new_empty(batch, rows, num_heads, sizes["D"])
    vectors = batch * rows * num_heads
    if vectors:
        kernels.place_heads_kernel[(_parts(vectors, sizes["BM"]),)](
            x, weight, cos, sin, out, x.stride(0), x.stride(1), vectors, rows, offset, eps,
            NORM=weight is not None, ROTARY=cos is not None, **sizes,
        )  # fmt: skip
    return out.transpose(1, 2)


@place_heads.register_fake
def _(x, num_heads, weight, eps, cos, sin, offset):
    batch, rows, width = x.shape
    return x.new_empty(batch, rows, num_heads, width // num_heads).transpose(1, 2)


@torch.library.custom_op("mnemo::place_heads_backward", mutates_args=())
def place_heads_backward(
    d_out: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    offset: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows, and parts (programs, d) of the weight's; x is needed if there is a weight."""
    d_out = _rows(d_out)
    batch, heads, rows, size = d_out.shape
    d_x = d_out.new_empty(batch, rows, heads * size)
    sums = _sums(d_out, weight)
    sizes, vectors = _sizes(d_x, heads), batch * rows * heads
    tiles = _tiles_each(vectors, sizes["BM"])
    if vectors:
        x = d_x if x is None else _rows(x)
        kernels.place_heads_backward_kernel[(_num_programs(vectors, sizes["BM"]),)](
            x, weight, cos, sin, d_out, d_x, sums, x.stride(0), x.stride(1), *d_out.stride()[:3], vectors, rows,
            offset, eps, tiles, NORM=weight is not None, ROTARY=cos is not None, **sizes,
        )  # fmt: skip
    return d_x, sums


@place_heads_backward.register_fake
def _(d_out, x, weight, eps, cos, sin, offset):
    batch, heads, rows, size = d_out.shape
    return d_out.new_empty(batch, rows, heads * size), _sums(d_out, weight)


def _tiles_each(vectors: int, tile: int) -> int:
    """Tiles of a program of the backward pass."""
    return max(1, _parts(_parts(vectors, tile), PROGRAMS))


def _num_programs(vectors: int, tile: int) -> int:
    return _parts(vectors, tile * _tiles_each(vectors, tile))


def _parts(count: int, size: int) -> int:
    """The number of parts of at most `size`."""
    return -(-count // size)


def _sums(d_out: Tensor, weight: Tensor | None) -> Tensor:
    batch, heads, rows, size = d_out.shape
    programs = 0 if weight is None else _num_programs(batch * rows * heads, _tile(size))
    return d_out.new_empty(programs, size, dtype=torch.float32)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, weight, ctx.eps, cos, sin, ctx.offset = inputs
    ctx.save_for_backward(None if weight is None else x, weight, cos, sin)


def _backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, cos, sin = ctx.saved_tensors
    d_x, sums = place_heads_backward(d_out, x, weight, ctx.eps, cos, sin, ctx.offset)
    # Outside of the operator, so that a compiler can fuse the sum with what follows.
    d_weight = None if weight is None else sums.sum(0).to(weight.dtype)
    return d_x, None, d_weight, None, None, None, None


place_heads.register_autograd(_backward, setup_context=_save_for_backward)


def obstacle(dtype: torch.dtype, size: int) -> str | None:
    """Why no kernel exists for heads of a size and type; None if one does."""
    if dtype not in DTYPES or size > LARGEST_HEAD:
        return f"no kernel divides {dtype} rows into heads of {size}"
    return None


def _errors(device: torch.device, dtype: torch.dtype, size: int) -> dict[str, float]:
    """Errors of outputs and gradients, compared with the plain path in fp32."""
    heads, rows, generator = 3, 40, torch.Generator().manual_seed(0)
    even, eps = size + size % 2, 1e-5
    drawn = torch.randn(2, rows, 2 * heads * even, generator=generator).to(device, dtype)
    weight = 1 + 0.1 * torch.randn(even, generator=generator).to(device)
    cos, sin = rotary_angles(rows + 5, even, 10000.0, drawn)
    results = []
    for number_type, function in ((dtype, place_heads), (torch.float32, place_heads_plain)):
        x = drawn.to(number_type).detach().requires_grad_()
        own, tables = weight.detach().requires_grad_(), (cos.to(number_type), sin.to(number_type))
        with torch.enable_grad():
            out = function(x.chunk(2, -1)[1], heads, own, eps, *tables, 5)
            slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
            results.append([out, *torch.autograd.grad((out * slope).sum(), [x, own])])
    return {name: relative_error(*pair) for name, *pair in zip(("out", "x", "weight"), *results, strict=True)}


def _failure(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    worst = max(_errors(device, dtype, size).values())
    return None if worst <= TOLERANCE[dtype] else f"error {worst:.1e}"


TEST = SelfTest("kernels for queries and keys", _failure)
