"""Small Triton kernels of a decoded token: embeddings, likeliest tokens, advancing the cursors."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mnemo.ops.cuda.decode_kernels import power_of_two, supports

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:
    triton = None

LARGEST_VOCABULARY = 16384
"""Logits of a row that one program compares"""


if triton is not None:

    @triton.jit
    def _look_up(ids_ptr, table_ptr, out_ptr, factor, D: tl.constexpr, BLOCK_D: tl.constexpr):
        row, dims = tl.program_id(0), tl.arange(0, BLOCK_D)
        at = tl.load(ids_ptr + row) * D + dims
        x = tl.load(table_ptr + at, mask=dims < D, other=0.0).to(tl.float32) * factor
        tl.store(out_ptr + row * D + dims, x.to(out_ptr.dtype.element_ty), mask=dims < D)

    @triton.jit
    def _take_likeliest(logits_ptr, tokens_ptr, finite_ptr, V: tl.constexpr, BLOCK_V: tl.constexpr):
        row, ids = tl.program_id(0), tl.arange(0, BLOCK_V)
        logits = tl.load(logits_ptr + row * V + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        unknown = tl.max((logits != logits).to(tl.int32), 0)
        largest = tl.max(logits, 0)
        if (unknown > 0) | (tl.abs(largest) == float("inf")):
            tl.store(finite_ptr, 0)
        tl.store(tokens_ptr + row, tl.argmax(logits, 0, tie_break_left=True).to(tl.int64))

    @triton.jit
    def _advance(
        places_ptr,
        slots_ptr,
        lengths_ptr,
        limits_ptr,
        counts_ptr,
        memory_ptr,
        window_ptr,
        segment,
        batch,
        total,
        BLOCK: tl.constexpr,
    ):
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = index < total
        memory = tl.load(memory_ptr + index // batch, mask=inside, other=1)
        window = tl.load(window_ptr + index // batch, mask=inside, other=1)
        place = tl.load(places_ptr + index, mask=inside, other=0) + 1
        count = tl.load(counts_ptr + index, mask=inside, other=0) + 1
        length = tl.load(lengths_ptr + index, mask=inside, other=0)
        full = count == segment
        length = tl.where(full, tl.minimum(length + segment, memory), length)
        count = tl.where(full, 0, count)
        tl.store(places_ptr + index, place, mask=inside)
        tl.store(slots_ptr + index, place % (memory + segment), mask=inside)
        tl.store(lengths_ptr + index, length, mask=inside)
        tl.store(counts_ptr + index, count, mask=inside)
        tl.store(limits_ptr + index, tl.minimum(length + count + 1, window), mask=inside)


def look_up(ids: Tensor, table: Tensor, factor: float) -> Tensor:
    """Rows (..., D) of a table (V, D), times a factor."""
    size, kernel = table.shape[1], cast(Any, _look_up)
    out = table.new_empty(*ids.shape, size)
    kernel[(ids.numel(),)](ids.contiguous(), table, out, factor, D=size, BLOCK_D=power_of_two(size))
    return out


def can_take(logits: Tensor) -> bool:
    """Whether `take_likeliest` supports logits (B, V)."""
    return supports(logits) and logits.shape[-1] <= LARGEST_VOCABULARY


def take_likeliest(logits: Tensor, finite: Tensor) -> Tensor:
    """The likeliest token of each row (B,), the first of equals; `finite` becomes false if a row has none."""
    batch, size = logits.shape
    tokens = torch.empty(batch, dtype=torch.int64, device=logits.device)
    block, kernel = power_of_two(size), cast(Any, _take_likeliest)
    kernel[(batch,)](logits.contiguous(), tokens, finite.view(torch.uint8), V=size, BLOCK_V=block)
    return tokens


def advance(
    places: Tensor,
    slots: Tensor,
    lengths: Tensor,
    limits: Tensor,
    counts: Tensor,
    memory: Tensor,
    window: Tensor,
    segment: int,
) -> None:
    """Advance the cursors (N, B) of all layers by one token; `memory` and `window` are (N, 1)."""
    num_layers, batch = places.shape
    total, kernel = num_layers * batch, cast(Any, _advance)
    grid = (-(-total // 128),)
    kernel[grid](places, slots, lengths, limits, counts, memory, window, segment, batch, total, BLOCK=128)
