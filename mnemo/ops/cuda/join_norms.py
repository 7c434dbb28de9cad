"""A kernel that writes the norms of a memory's rows and of the segment's rows after them into one tensor.

Separate norms would have to be concatenated, which reads and writes all of them once more. Norms are "rms", without
weights.

Shapes: B batch, M memory rows, L segment rows, D width, in tiles of ROWS x BLOCK.
"""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
# Triton kernels are not Python to a type checker.

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mnemo.ops.cuda.dispatch import TOLERANCE, relative_error
from mnemo.ops.cuda.row_operators import FORWARD, add_norm_backward, as_rows
from mnemo.ops.cuda.self_test import SelfTest


@triton.jit
def join_norms_kernel(
    MEMORY, X, JOINED, NORMED, SCALE, num_rows, num_memory, num_new, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """JOINED (B, M + L, D), and for the segment's rows NORMED (B, L, D) and SCALE (B, L), fp32."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)[None, :]
    text, place = rows // (num_memory + num_new), rows % (num_memory + num_new)
    old, new = (rows < num_rows) & (place < num_memory), (rows < num_rows) & (place >= num_memory)
    held_row, new_row = text * num_memory + place, text * num_new + place - num_memory
    held_at = held_row.to(tl.int64)[:, None] * D + columns
    new_at = new_row.to(tl.int64)[:, None] * D + columns
    old_mask, new_mask = old[:, None] & (columns < D), new[:, None] & (columns < D)
    x = tl.load(MEMORY + held_at, mask=old_mask, other=0.0).to(tl.float32)
    x += tl.load(X + new_at, mask=new_mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)
    normed = (x * scale[:, None]).to(JOINED.dtype.element_ty)
    tl.store(JOINED + rows.to(tl.int64)[:, None] * D + columns, normed, mask=old_mask | new_mask)
    tl.store(NORMED + new_at, normed, mask=new_mask)
    tl.store(SCALE + new_row, scale, mask=new)


@torch.library.custom_op("mnemo::join_norms", mutates_args=())
def join_norms(memory: Tensor, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Norms of x (B, L, D); those of [memory ; x] (B, M + L, D), as constants; and what x was multiplied by, (B, L)."""
    normed, joined, scale = found = _empty_outputs(memory, x)
    num_rows, tile = joined.numel() // x.shape[-1], FORWARD.whole_rows(x.shape[-1])
    if num_rows:
        join_norms_kernel[(triton.cdiv(num_rows, tile["ROWS"]),)](
            as_rows(memory), as_rows(x), joined, normed, scale, num_rows, memory.shape[1], x.shape[1], eps, **tile
        )
    return found


def _empty_outputs(memory: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, num_new, width = x.shape
    joined = x.new_empty(batch, memory.shape[1] + num_new, width)
    return x.new_empty(x.shape), joined, x.new_empty(batch, num_new, dtype=torch.float32)


@join_norms.register_fake
def _(memory, x, eps):
    return _empty_outputs(memory, x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[1], output[2])


def _backward(ctx: Any, d_normed: Tensor | None, *_: Any) -> tuple[None, Tensor | None, None]:
    x, scale = ctx.saved_tensors
    if d_normed is None:
        return None, None, None
    nothing = scale.new_empty(0)
    d_x = add_norm_backward(None, d_normed, x, nothing, scale, None, None, None, None, 0, 0.0, "rms")[0]
    return None, d_x, None


join_norms.register_autograd(_backward, setup_context=_save)


def _failure(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    """What is wrong with the kernel for rows of `size`: outputs and the gradient are compared with plain PyTorch."""
    generator, eps = torch.Generator().manual_seed(0), 1e-5
    memory, drawn, slope = (torch.randn(3, rows, size, generator=generator).to(device, dtype) for rows in (7, 5, 5))
    with torch.enable_grad():
        x, exact = drawn.detach().requires_grad_(), drawn.detach().float().requires_grad_()
        normed, joined, _ = join_norms(memory, x, eps)
        want = F.rms_norm(torch.cat([memory.float(), exact], 1), (size,), eps=eps)
        gradients = [torch.autograd.grad(y, z, slope.to(y)) for y, z in ((normed, x), (want[:, 7:], exact))]
    pairs = ((normed, want[:, 7:]), (joined, want), (gradients[0][0], gradients[1][0]))
    worst = max(relative_error(*pair) for pair in pairs)
    return None if worst <= TOLERANCE[dtype] else f"error {worst:.1e}"


TEST = SelfTest("norms of joined rows", _failure)
