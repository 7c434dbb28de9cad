"""Triton kernels of a decoded token: attention, and advancing the cursors.

In attention, the keys of a row are divided into parts, whose sums a second kernel combines; one program loads the keys,
values and positions of one head and part, each once. Shapes as in `decode_attention`.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from mnemo.errors import one_line

if TYPE_CHECKING:
    from mnemo.ops.cuda.decode_attention import Table

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:
    triton = None

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PROGRAMS = 512
"""Number of programs that keep a GPU busy."""
LARGEST_HEAD = 256
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Types of the kernels, and the largest relative difference of each from plain PyTorch in float32."""


def supports(x: Tensor) -> bool:
    """Whether the kernels run on the device and in the type of a tensor."""
    return triton is not None and x.dtype in TOLERANCE and (INTERPRETED or (x.is_cuda and works(x.device, x.dtype)))


_found: dict[tuple[torch.device, torch.dtype], bool] = {}


def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels agree with plain PyTorch there: one test, and one warning with the reason if not."""
    if (device, dtype) not in _found:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return True  # recorded work has run before
        problem = _failure(device, dtype)
        _found[device, dtype] = problem is None
        if problem is not None:
            warnings.warn(f"decoding runs in plain PyTorch, which is slower: {problem}", stacklevel=2)
    return _found[device, dtype]


def _failure(device: torch.device, dtype: torch.dtype) -> str | None:
    from mnemo.ops.cuda.decode_attention import Table, decode_attention_plain

    if device.type == "cuda" and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
        return "this GPU has no bf16"
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    given = [draw(2, 2, 16), draw(2, 2, 16), draw(2, 2, 16), draw(2, 2, 2, 24, 16)]
    tables = [draw(2, 24, 16), draw(2, 16), draw(2, 16)]
    slots, limits = torch.tensor([[3, 20], [24, 7]], device=device)
    try:
        q, k, v, ring = (x.clone() for x in given)
        got = attend(q, k, v, ring, Table(*tables), slots, limits).float()
    except Exception as error:  # any compiler error: plain PyTorch is used instead
        return f"{type(error).__name__}: {one_line(error)}"
    q, k, v, ring = (x.float() for x in given)
    want = decode_attention_plain(q, k, v, ring, Table(*(x.float() for x in tables)), slots, limits)
    error = float((got - want).norm() / want.norm())
    return None if error < TOLERANCE[dtype] else f"its kernels are off by {error:.1e}"  # also if it is nan


def suit(ring: Tensor) -> bool:
    """Whether the attention kernels support a ring: tiles of whole heads must fit."""
    return supports(ring) and ring.shape[-1] <= LARGEST_HEAD


if triton is not None:

    @triton.jit
    def _attend_part(
        q_ptr,
        k_ptr,
        v_ptr,
        ring_ptr,
        r_ptr,
        u_ptr,
        w_ptr,
        bias_ptr,
        slots_ptr,
        limits_ptr,
        sums_ptr,
        stats_ptr,
        scale,
        heads,
        num_slots,
        part_size,
        num_parts,
        stride_q,
        stride_k,
        stride_v,
        D: tl.constexpr,
        BLOCK_D: tl.constexpr,
        BLOCK_N: tl.constexpr,
        HAS_R: tl.constexpr,
        HAS_U: tl.constexpr,
        HAS_W: tl.constexpr,
        HAS_BIAS: tl.constexpr,
    ):
        part, row_head = tl.program_id(0), tl.program_id(1)
        row, head = row_head // heads, row_head % heads
        slot, limit = tl.load(slots_ptr + row).to(tl.int32), tl.load(limits_ptr + row).to(tl.int32)
        dims = tl.arange(0, BLOCK_D)
        inside = dims < D
        vector = head * D + dims
        q = tl.load(q_ptr + row * stride_q + vector, mask=inside, other=0.0).to(tl.float32)
        content, position = q, q
        if HAS_U:
            content = q + tl.load(u_ptr + vector, mask=inside, other=0.0).to(tl.float32)
        if HAS_W:
            position = q + tl.load(w_ptr + vector, mask=inside, other=0.0).to(tl.float32)
        new_key = tl.load(k_ptr + row * stride_k + vector, mask=inside, other=0.0)
        new_value = tl.load(v_ptr + row * stride_v + vector, mask=inside, other=0.0)
        keys_ptr = ring_ptr + row_head.to(tl.int64) * num_slots * D
        values_ptr = keys_ptr + tl.num_programs(1).to(tl.int64) * num_slots * D
        begin = part * part_size
        end = tl.minimum(begin + part_size, num_slots)
        largest = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)
        context = tl.zeros((BLOCK_D,), tl.float32)
        for start in range(begin, end, BLOCK_N):
            index = start + tl.arange(0, BLOCK_N)
            age = slot - index
            age = tl.where(age < 0, age + num_slots, age)
            seen = (index < end) & (age < limit)
            wanted = seen[:, None] & inside[None, :]
            place = index[:, None] * D + dims[None, :]
            fresh = (index == slot)[:, None]
            keys = tl.load(keys_ptr + place, mask=wanted, other=0.0)
            keys = tl.where(fresh, new_key[None, :], keys).to(tl.float32)
            scores = tl.sum(keys * content[None, :], 1)
            column = head * num_slots + num_slots - 1 - age
            if HAS_R:
                r = tl.load(r_ptr + column[:, None] * D + dims[None, :], mask=wanted, other=0.0).to(tl.float32)
                scores += tl.sum(r * position[None, :], 1)
            if HAS_BIAS:
                scores += tl.load(bias_ptr + column, mask=seen, other=0.0).to(tl.float32)
            scores = tl.where(seen, scores * scale, float("-inf"))
            values = tl.load(values_ptr + place, mask=wanted, other=0.0)
            values = tl.where(fresh, new_value[None, :], values).to(tl.float32)
            above = tl.maximum(largest, tl.max(scores, 0))
            origin = tl.where(above == float("-inf"), 0.0, above)
            shares = tl.exp(scores - origin)
            kept = tl.exp(largest - origin)
            total = total * kept + tl.sum(shares, 0)
            context = context * kept + tl.sum(shares[:, None] * values, 0)
            largest = above
        if (slot >= begin) & (slot < end):
            tl.store(keys_ptr + slot * D + dims, new_key, mask=inside)
            tl.store(values_ptr + slot * D + dims, new_value, mask=inside)
        target = row_head * num_parts + part
        tl.store(sums_ptr + target * D + dims, context, mask=inside)
        tl.store(stats_ptr + 2 * target, largest)
        tl.store(stats_ptr + 2 * target + 1, total)

    @triton.jit
    def _put_together(
        sums_ptr,
        stats_ptr,
        out_ptr,
        num_parts,
        D: tl.constexpr,
        BLOCK_D: tl.constexpr,
        BLOCK_S: tl.constexpr,
    ):
        row_head = tl.program_id(0)
        dims, parts = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
        inside, there = dims < D, parts < num_parts
        first = row_head * num_parts + parts
        largest = tl.load(stats_ptr + 2 * first, mask=there, other=float("-inf"))
        totals = tl.load(stats_ptr + 2 * first + 1, mask=there, other=0.0)
        weight = tl.exp(largest - tl.max(largest, 0))
        place = first[:, None] * D + dims[None, :]
        sums = tl.load(sums_ptr + place, mask=there[:, None] & inside[None, :], other=0.0)
        context = tl.sum(sums * weight[:, None], 0) / tl.sum(totals * weight, 0)  # type: ignore[operator]
        tl.store(out_ptr + row_head * D + dims, context.to(out_ptr.dtype.element_ty), mask=inside)

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


def attend(q: Tensor, k: Tensor, v: Tensor, ring: Tensor, table: Table, slots: Tensor, limits: Tensor) -> Tensor:
    """As `decode_attention`."""
    _, batch, heads, num_slots, size = ring.shape
    block_d = _power_of_two(size)
    block_n = max(16, 4096 // block_d)
    parts = max(1, min(-(-num_slots // block_n), PROGRAMS // (batch * heads)))
    part_size = -(-num_slots // (parts * block_n)) * block_n
    parts = -(-num_slots // part_size)
    q, k, v = (_heads_together(x) for x in (q, k, v))
    sums = torch.empty(batch * heads * parts, size, dtype=torch.float32, device=ring.device)
    stats = torch.empty(batch * heads * parts, 2, dtype=torch.float32, device=ring.device)
    out = torch.empty(batch, heads * size, dtype=ring.dtype, device=ring.device)
    tables = [_dense(part, ring) for part in table]
    kernel, combine = cast(Any, _attend_part), cast(Any, _put_together)
    kernel[(parts, batch * heads)](
        q,
        k,
        v,
        ring,
        *tables,
        slots,
        limits,
        sums,
        stats,
        size**-0.5,
        heads,
        num_slots,
        part_size,
        parts,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        D=size,
        BLOCK_D=block_d,
        BLOCK_N=block_n,
        HAS_R=table.r is not None,
        HAS_U=table.u is not None,
        HAS_W=table.w is not None,
        HAS_BIAS=table.bias is not None,
    )
    combine[(batch * heads,)](sums, stats, out, parts, D=size, BLOCK_D=block_d, BLOCK_S=_power_of_two(parts))
    return out


def _heads_together(x: Tensor) -> Tensor:
    """(B, H, d) with contiguous rows."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _dense(part: Tensor | None, absent: Tensor) -> Tensor:
    """A contiguous table; any other pointer if there is none, which the kernel does not use."""
    return absent if part is None else part.contiguous()


def _power_of_two(value: int) -> int:
    return 1 << max(4, (value - 1).bit_length())
