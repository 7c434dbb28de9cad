"""Triton kernels of a decoded token's attention, and whether kernels of decoding can be used.

The keys of a row are divided into parts, whose sums a second kernel combines. A program goes through the distances of
a part, and loads their positions once for the keys and values of several rows. Shapes as in `decode_attention`; G rows
of a program, N keys of a tile.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from mnemo.errors import one_line
from mnemo.ops.cuda import early_start

if TYPE_CHECKING:
    from mnemo.ops.cuda.decode_attention import Table

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]

    from mnemo.ops.cuda.early_start import let_next_start, prefetch, wait_for_previous
except ImportError:
    triton = None

INTERPRETED = False
"""Whether kernels of decoding run on every device: tests of these kernels set it, with Triton's interpreter."""
LARGEST_PARTS = 32
ONE_TEXT_PROGRAMS, EARLY_ONE_TEXT_PROGRAMS = 256, 128
"""Programs of attention for one text; with an early start"""
PIECE_BYTES = 512
PREFETCHED_PIECES = 32
"""Pieces of the keys and of the values of a text that a program with an early start prefetches"""
LOG2_E = 1.4426950408889634
LARGEST_HEAD = 256
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Types of the kernels, and the largest relative difference of each from plain PyTorch in float32."""


def supports(x: Tensor) -> bool:
    """Whether the kernels run on the device and in the type of a tensor."""
    return triton is not None and x.dtype in TOLERANCE and (INTERPRETED or (x.is_cuda and works(x.device, x.dtype)))


_found: dict[tuple[torch.device, torch.dtype], bool] = {}


def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels agree with plain PyTorch there: one test, and one warning with the reason if not."""
    return trusted(_found, device, dtype, _failure, "decoding runs in plain PyTorch, which is slower")


def trusted(
    found: dict[tuple[torch.device, torch.dtype], bool],
    device: torch.device,
    dtype: torch.dtype,
    failure: Callable[[torch.device, torch.dtype], str | None],
    otherwise: str,
) -> bool:
    """Whether kernels have passed their test; `found` keeps the result."""
    if (device, dtype) not in found:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return True  # recorded work has run before
        problem = failure(device, dtype)
        found[device, dtype] = problem is None
        if problem is not None:
            warnings.warn(f"{otherwise}: {problem}", stacklevel=3)
    return found[device, dtype]


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
    LOWEST = tl.constexpr(-1e30)
    """Below every score, and finite: differences stay numbers."""
    PIECE = tl.constexpr(PIECE_BYTES)

    @triton.jit
    def _load_tile(
        rings_ptr,
        r_ptr,
        slots,
        limits,
        start,
        end,
        num_slots,
        values_at,
        lanes,
        dims,
        inside,
        D: tl.constexpr,
        HAS_R: tl.constexpr,
    ):
        """Keys, values (G, N, d) and positions (1, N, d) of a tile of distances; zeros where a text sees nothing."""
        column = start + lanes
        age = num_slots - 1 - column
        index = column + slots + 1
        index = tl.where(index >= num_slots, index - num_slots, index)
        wanted = (age > 0) & (age < limits) & (column < end) & inside
        keys_ptr = rings_ptr + (index * D + dims)
        keys = tl.load(keys_ptr, mask=wanted, other=0.0)
        values = tl.load(keys_ptr + values_at, mask=wanted, other=0.0)
        r = keys
        if HAS_R:
            r = tl.load(r_ptr + (column * D + dims), mask=(column < end) & inside, other=0.0)
        return keys, values, r

    @triton.jit
    def _add_tile(
        keys,
        values,
        r,
        content,
        position,
        bias_ptr,
        scale,
        limits,
        start,
        end,
        num_slots,
        largest,
        total,
        context,
        BLOCK_N: tl.constexpr,
        HAS_R: tl.constexpr,
        HAS_BIAS: tl.constexpr,
    ):
        """Every lane of a tile (G, N) has a softmax of its own, so that the loop needs no sum over lanes."""
        products = keys.to(tl.float32) * content
        if HAS_R:
            products += r.to(tl.float32) * position
        scores = tl.sum(products, 2)
        column = start + tl.arange(0, BLOCK_N)
        age = num_slots - 1 - column
        seen = ((age > 0) & (column < end))[None, :] & (age[None, :] < limits[:, None])
        if HAS_BIAS:
            bias = tl.load(bias_ptr + column, mask=column < end, other=0.0).to(tl.float32)
            scores += (bias * scale)[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        above = tl.maximum(largest, scores)
        shares, kept = tl.exp2(scores - above), tl.exp2(largest - above)
        total = total * kept + shares
        context = context * kept[:, :, None] + shares[:, :, None] * values.to(tl.float32)
        return above, total, context

    @triton.jit
    def _prefetch_ring(
        ring_ptr,
        slots_ptr,
        head,
        heads,
        start,
        end,
        num_slots,
        values_at,
        batch,
        D: tl.constexpr,
        GROUP: tl.constexpr,
        AHEAD: tl.constexpr,
    ):
        """Prefetch keys and values of a program's texts, for AHEAD distances from `start` on."""
        KEYS: tl.constexpr = PIECE // (ring_ptr.dtype.element_ty.primitive_bitwidth // 8 * D)
        place = tl.arange(0, 2 * GROUP * (AHEAD // KEYS))
        text = tl.minimum(tl.program_id(2) * GROUP + place // 2 % GROUP, batch - 1)
        column = tl.minimum(start + place // (2 * GROUP) * KEYS, end - 1)
        index = column + tl.load(slots_ptr + text).to(tl.int32) + 1
        index = tl.minimum(tl.where(index >= num_slots, index - num_slots, index), num_slots - KEYS)
        row = (text * heads + head).to(tl.int64) * num_slots + index
        prefetch(ring_ptr + (row * D + (place % 2) * values_at), PIECE)

    @triton.jit
    def _attend_part(
        q_ptr, k_ptr, v_ptr, ring_ptr, r_ptr, u_ptr, w_ptr, bias_ptr, slots_ptr, limits_ptr, sums_ptr, stats_ptr,
        out_ptr, scale, batch, num_slots, part_size, values_at, stride_q, stride_k, stride_v,
        D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, HAS_R: tl.constexpr,
        HAS_U: tl.constexpr, HAS_W: tl.constexpr, HAS_BIAS: tl.constexpr, ONE_PART: tl.constexpr, STAGES: tl.constexpr,
        EARLY: tl.constexpr, AHEAD: tl.constexpr,
    ):  # fmt: skip
        part, head = tl.program_id(0), tl.program_id(1)
        num_parts, heads = tl.num_programs(0), tl.num_programs(1)
        texts = tl.program_id(2) * GROUP + tl.arange(0, GROUP)
        dims = tl.arange(0, BLOCK_D)
        there, inside = texts < batch, dims < D
        slots = tl.load(slots_ptr + texts, mask=there, other=0).to(tl.int32)
        limits = tl.load(limits_ptr + texts, mask=there, other=0).to(tl.int32)
        begin = part * part_size
        end = tl.minimum(begin + part_size, num_slots)
        begin = tl.maximum(begin, (num_slots - tl.max(limits, 0)) // BLOCK_N * BLOCK_N)
        rings_ptr = ring_ptr + (texts * heads + head).to(tl.int64)[:, None, None] * num_slots * D
        slots3, limits3 = slots[:, None, None], limits[:, None, None]
        lanes, dims3 = tl.arange(0, BLOCK_N)[None, :, None], dims[None, None, :]
        inside3 = inside[None, None, :]
        head_r_ptr, head_bias_ptr = r_ptr + head * num_slots * D, bias_ptr + head * num_slots
        # The first tile is loaded here, so that its loads and those of the queries are under way at the same time.
        keys, values, r = _load_tile(
            rings_ptr, head_r_ptr, slots3, limits3, begin, end, num_slots, values_at, lanes, dims3, inside3, D, HAS_R
        )
        if AHEAD:
            _prefetch_ring(
                ring_ptr, slots_ptr, head, heads, begin + BLOCK_N, end, num_slots, values_at, batch, D, GROUP, AHEAD
            )
        wait_for_previous(EARLY)
        vector = head * D + dims
        known = there[:, None] & inside[None, :]
        q = tl.load(q_ptr + texts[:, None] * stride_q + vector[None, :], mask=known, other=0.0).to(tl.float32)
        content, position = q, q
        if HAS_U:
            content = q + tl.load(u_ptr + vector, mask=inside, other=0.0).to(tl.float32)[None, :]
        if HAS_W:
            position = q + tl.load(w_ptr + vector, mask=inside, other=0.0).to(tl.float32)[None, :]
        content, position = content * scale, position * scale
        content3, position3 = content[:, None, :], position[:, None, :]
        largest = tl.full((GROUP, BLOCK_N), LOWEST, tl.float32)
        total = tl.zeros((GROUP, BLOCK_N), tl.float32)
        context = tl.zeros((GROUP, BLOCK_N, BLOCK_D), tl.float32)
        largest, total, context = _add_tile(
            keys, values, r, content3, position3, head_bias_ptr, scale, limits, begin, end, num_slots,
            largest, total, context, BLOCK_N, HAS_R, HAS_BIAS,
        )  # fmt: skip
        for start in tl.range(begin + BLOCK_N, end, BLOCK_N, num_stages=STAGES):
            keys, values, r = _load_tile(
                rings_ptr, head_r_ptr, slots3, limits3, start, end, num_slots, values_at, lanes, dims3, inside3, D,
                HAS_R,
            )  # fmt: skip
            largest, total, context = _add_tile(
                keys, values, r, content3, position3, head_bias_ptr, scale, limits, start, end, num_slots,
                largest, total, context, BLOCK_N, HAS_R, HAS_BIAS,
            )  # fmt: skip
        # Not earlier: what the next kernels prefetch would leave the cache before they use it.
        let_next_start(EARLY)
        above = tl.max(largest, 1)
        kept = tl.exp2(largest - above[:, None])
        whole = tl.sum(total * kept, 1)
        summed = tl.sum(context * kept[:, :, None], 1)
        if part == num_parts - 1:  # the new token's own key
            new_key = tl.load(k_ptr + texts[:, None] * stride_k + vector[None, :], mask=known, other=0.0)
            new_value = tl.load(v_ptr + texts[:, None] * stride_v + vector[None, :], mask=known, other=0.0)
            products = new_key.to(tl.float32) * content
            if HAS_R:
                newest = head_r_ptr + (num_slots - 1) * D + dims
                products += tl.load(newest, mask=inside, other=0.0).to(tl.float32)[None, :] * position
            score = tl.sum(products, 1)
            if HAS_BIAS:
                score += tl.load(head_bias_ptr + num_slots - 1).to(tl.float32) * scale
            highest = tl.maximum(above, score)
            share, kept_sums = tl.exp2(score - highest), tl.exp2(above - highest)
            whole = whole * kept_sums + share
            summed = summed * kept_sums[:, None] + share[:, None] * new_value.to(tl.float32)
            above = highest
            at = ring_ptr + (texts * heads + head).to(tl.int64)[:, None] * num_slots * D + (slots[:, None] * D + dims)
            tl.store(at, new_key, mask=known)
            tl.store(at + values_at, new_value, mask=known)
        if ONE_PART:
            out = (summed / whole[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + texts[:, None] * heads * D + vector[None, :], out, mask=known)
        else:
            target = (texts * heads + head) * num_parts + part
            tl.store(sums_ptr + target[:, None] * D + dims[None, :], summed, mask=known)
            tl.store(stats_ptr + 2 * target, above, mask=there)
            tl.store(stats_ptr + 2 * target + 1, whole, mask=there)

    @triton.jit
    def _put_together(
        sums_ptr,
        stats_ptr,
        out_ptr,
        num_parts,
        D: tl.constexpr,
        BLOCK_D: tl.constexpr,
        BLOCK_S: tl.constexpr,
        EARLY: tl.constexpr,
    ):
        let_next_start(EARLY)
        wait_for_previous(EARLY)
        row_head = tl.program_id(0)
        dims, parts = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_S)
        inside, there = dims < D, parts < num_parts
        first = row_head * num_parts + parts
        largest = tl.load(stats_ptr + 2 * first, mask=there, other=LOWEST)
        totals = tl.load(stats_ptr + 2 * first + 1, mask=there, other=0.0)
        weight = tl.exp2(largest - tl.max(largest, 0))
        place = first[:, None] * D + dims[None, :]
        sums = tl.load(sums_ptr + place, mask=there[:, None] & inside[None, :], other=0.0)
        context = tl.sum(sums * weight[:, None], 0) / tl.sum(totals * weight, 0)  # type: ignore[operator]
        tl.store(out_ptr + row_head * D + dims, context.to(out_ptr.dtype.element_ty), mask=inside)


class Parts(NamedTuple):
    """Contexts of parts of the keys: sums (B * H * P, d), and the largest score and total (B * H * P, 2) of each."""

    sums: Tensor
    stats: Tensor
    num_parts: int


class Tiling(NamedTuple):
    """How attention is divided among programs."""

    group: int
    """Texts of a program: they share the loaded positions"""
    block: int
    """Keys of a tile"""
    parts: int
    """Programs that share the keys of a text"""
    warps: int
    stages: int
    """Tiles that are loaded ahead into shared memory; 1: none"""


def tiling(batch: int, heads: int, num_slots: int, block_d: int, item_bytes: int) -> Tiling:
    """Measured on an H200: few texts need many programs at once; many texts need loads ahead and shared positions."""
    wide = block_d * item_bytes > 128
    one = EARLY_ONE_TEXT_PROGRAMS if early_start.is_early() else ONE_TEXT_PROGRAMS
    group, block, programs, stages = (1, 128, one, 1) if batch == 1 else (1, 64, 512, 1)
    if batch >= 8:
        group, block, programs, stages = 2, 32, 256, 1 if wide else 3
    if wide:
        block = max(16, block * 128 // (block_d * item_bytes))
    tiles = -(-num_slots // block)
    parts = min(tiles, LARGEST_PARTS, programs // (heads * -(-batch // group)))
    return Tiling(group, block, max(1, parts), 4, stages)


def attend(q: Tensor, k: Tensor, v: Tensor, ring: Tensor, table: Table, slots: Tensor, limits: Tensor) -> Tensor:
    """As `decode_attention`."""
    found = attend_parts(q, k, v, ring, table, slots, limits)
    return found if isinstance(found, Tensor) else put_together(found, len(q), ring.dtype)


def put_together(parts: Parts, batch: int, dtype: torch.dtype) -> Tensor:
    """The contexts (B, H * d)."""
    sums, stats, num_parts = parts
    size, count = sums.shape[1], len(sums) // num_parts
    out = torch.empty(batch, count // batch * size, dtype=dtype, device=sums.device)
    cast(Any, _put_together)[(count,)](
        sums,
        stats,
        out,
        num_parts,
        D=size,
        BLOCK_D=power_of_two(size),
        BLOCK_S=power_of_two(num_parts),
        **early_start.launch_options(),
    )
    return out


def attend_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ring: Tensor,
    table: Table,
    slots: Tensor,
    limits: Tensor,
    tiles: Tiling | None = None,
) -> Tensor | Parts:
    """The contexts (B, H * d), or the parts that make them up if there are several."""
    _, batch, heads, num_slots, size = ring.shape
    block_d = power_of_two(size)
    group, block, parts, warps, stages = tiles or tiling(batch, heads, num_slots, block_d, ring.element_size())
    part_size = -(-num_slots // (parts * block)) * block
    parts = -(-num_slots // part_size)
    q, k, v = (_heads_together(x) for x in (q, k, v))
    count = batch * heads * parts if parts > 1 else 0
    sums = torch.empty(count, size, dtype=torch.float32, device=ring.device)
    stats = torch.empty(count, 2, dtype=torch.float32, device=ring.device)
    out = torch.empty(batch if parts == 1 else 0, heads * size, dtype=ring.dtype, device=ring.device)
    early = early_start.launch_options(*table)
    kernel = cast(Any, _attend_part)
    kernel[(parts, heads, -(-batch // group))](
        q,
        k,
        v,
        ring,
        *(_dense(part, ring) for part in table),
        slots,
        limits,
        sums,
        stats,
        out,
        size**-0.5 * LOG2_E,
        batch,
        num_slots,
        part_size,
        ring.stride(0),
        q.stride(0),
        k.stride(0),
        v.stride(0),
        D=size,
        BLOCK_D=block_d,
        BLOCK_N=block,
        GROUP=group,
        HAS_R=table.r is not None,
        HAS_U=table.u is not None,
        HAS_W=table.w is not None,
        HAS_BIAS=table.bias is not None,
        ONE_PART=parts == 1,
        STAGES=stages,
        AHEAD=_prefetched(ring, part_size - block) if early["EARLY"] else 0,
        num_warps=warps,
        **early,
    )
    return out if parts == 1 else Parts(sums, stats, parts)


def _prefetched(ring: Tensor, further: int) -> int:
    """Distances of a part that are prefetched while the program waits; `further`: those after the first tile."""
    size = ring.shape[-1] * ring.element_size()
    fits = PIECE_BYTES % size == 0 and size % 16 == 0 and ring.shape[3] * size >= PIECE_BYTES
    pieces = min(PREFETCHED_PIECES, further * size // PIECE_BYTES) if fits else 0
    return 0 if pieces < 1 else (1 << (pieces.bit_length() - 1)) * PIECE_BYTES // size


def _heads_together(x: Tensor) -> Tensor:
    """(B, H, d) with contiguous rows."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _dense(part: Tensor | None, absent: Tensor) -> Tensor:
    """A contiguous table; any other pointer if there is none, which the kernel does not use."""
    return absent if part is None else part.contiguous()


def power_of_two(value: int) -> int:
    return 1 << max(4, (value - 1).bit_length())
