"""Launch the kernels: descriptors, tiles and buffers. Autograd is in `operator.py`."""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
# The launcher of a kernel takes other arguments than the kernel.

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mnemo.ops.cuda import backward_kernels as backward
from mnemo.ops.cuda import forward_kernels as forward
from mnemo.ops.cuda.score_layout import RESIDUES, Layout

LOG2E = 1.4426950408889634
KEPT_BYTES = 200 * 2**20
"""Position scores of a call are kept for the backward pass up to this size."""


class Tile(NamedTuple):
    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of every kernel: queries x keys, or rows x distances in kernels that go by distance."""

    position: Tile = Tile(64, 64, 4, 3)
    """A multiple of the tiles of the kernels that load by distance, which skip the tiles that it skips"""
    forward: Tile = Tile(64, 64, 4, 3)
    key_value: Tile = Tile(64, 64, 4, 3)
    position_query: Tile = Tile(64, 64, 4, 3)
    query: Tile = Tile(64, 64, 4, 3)
    relation: Tile = Tile(64, 64, 4, 3)

    def shallow(self) -> Tiles:
        """For devices with little shared memory."""
        return Tiles(**{name: tile._replace(stages=1) for name, tile in vars(self).items()})


SMALL = Tiles()
WIDE = replace(SMALL, key_value=Tile(64, 64, 4, 2))
"""Heads of 128"""
EXACT = Tiles(
    position=Tile(64, 32, 4, 1),
    forward=Tile(32, 32, 4, 1),
    key_value=Tile(32, 32, 4, 1),
    position_query=Tile(32, 32, 4, 1),
    query=Tile(32, 32, 4, 1),
    relation=Tile(32, 32, 4, 1),
)
"""Single precision"""
DEEP_MEMORY = 160 * 1024
"""Least bytes of shared memory of a processor for which loads are staged several tiles ahead"""


def tiles_for(q: Tensor) -> Tiles:
    if q.dtype == torch.float32:
        return EXACT
    tiles = WIDE if q.shape[-1] > 64 else SMALL
    return tiles if shared_memory(q.device) >= DEEP_MEMORY else tiles.shallow()


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use; in Triton's interpreter there is no limit."""
    if device.type != "cuda":
        return sys.maxsize
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


@dataclass(frozen=True)
class Arguments:
    """The arguments of one attention call: inputs with 16-byte strides and a head size that is a power of 2."""

    q: Tensor
    k: Tensor
    v: Tensor
    r: Tensor | None
    u: Tensor | None
    w: Tensor | None
    bias: Tensor | None
    begin: Tensor | None
    """(B,) the first key that a row sees"""
    low: Tensor | None
    high: Tensor | None
    """(B, L) each: the keys [low, high) that each query sees, instead of a causal mask"""
    limit: Tensor | None
    """(1,) no query sees more than this number of first keys"""
    seed: Tensor | None
    """(1,) seed of dropout"""
    offset: int
    ahead: int
    window: int
    """0 for none"""
    rate: float
    root: float
    """Factor of the scores"""

    @property
    def layout(self) -> Layout:
        batch, heads, queries, _ = self.q.shape
        return Layout(batch, heads, queries, self.k.shape[2], self.offset + queries + self.ahead)

    @property
    def precision(self) -> str:
        return "tf32x3" if self.q.dtype == torch.float32 else "tf32"

    @property
    def score_dtype(self) -> torch.dtype:
        return torch.float32 if self.q.dtype == torch.float32 else torch.float16

    @property
    def first_column(self) -> int:
        """The column of r for the farthest distance of the layout."""
        assert self.r is not None
        return self.r.shape[1] - self.layout.num_distances

    def modes(self) -> dict[str, bool]:
        return {"SPANS": self.low is not None, "WINDOW": self.window > 0}

    def place(self) -> dict[str, Any]:
        """Kernel arguments about sizes and positions."""
        return {
            "num_heads": self.q.shape[1],
            "num_rows": self.q.shape[2],
            "num_keys": self.k.shape[2],
            "offset": self.offset,
            "window": self.window,
        }


def blocks(x: Tensor, rows: int) -> TensorDescriptor:
    """Tiles (rows, D) of (B, H, T, D); elements outside load as zero and are not stored."""
    strides = [stride if size > 1 else x.shape[-1] * rows for stride, size in zip(x.stride(), x.shape, strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides[:-1], 1], [1, 1, rows, x.shape[-1]])


def matrix(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


def table(r: Tensor, rows: int) -> TensorDescriptor:
    """Tiles (rows, D) of (H, C, D)."""
    return TensorDescriptor(r, list(r.shape), list(r.stride()), [1, rows, r.shape[2]])


class Prepared(NamedTuple):
    content: Tensor
    """q + u, (B, H, L, D)"""
    position: Tensor | None
    """q + w sorted by residue, (rows, D)"""


def prepare(call: Arguments, content: bool) -> Prepared:
    """Queries plus biases; `content`: whether q + u is needed."""
    q, layout, rows = call.q, call.layout, 64
    add = content and call.u is not None
    queries = torch.empty(q.shape, dtype=q.dtype, device=q.device) if add else q
    position = None
    if call.r is not None:
        position = torch.empty(layout.num_rows, q.shape[3], dtype=q.dtype, device=q.device)
    if not add and position is None:
        return Prepared(q, None)
    grid = (triton.cdiv(layout.residue_rows * RESIDUES, rows), layout.batch * layout.heads)
    forward.prepare_kernel[grid](
        q, call.u, call.w, queries, position, *q.stride()[:3], layout.batch, layout.heads, layout.num_queries,
        layout.residue_rows, layout.group_rows, HAS_U=add, HAS_W=call.w is not None, HAS_X=position is not None,
        PAD=layout.group_rows > layout.batch * layout.residue_rows, D=q.shape[3], BM=rows,
    )  # fmt: skip
    return Prepared(queries, position)


def keep_scores(call: Arguments) -> bool:
    """Whether position scores are kept for the backward pass, or computed again there."""
    return call.r is not None and call.layout.num_elements * call.score_dtype.itemsize <= KEPT_BYTES


def new_scores(call: Arguments) -> Tensor:
    """An uninitialised buffer of scores."""
    return torch.empty(call.layout.num_elements, dtype=call.score_dtype, device=call.q.device)


def position_scores(call: Arguments, position: Tensor, scores: Tensor, tile: Tile, again: bool) -> None:
    """Fill a buffer with position scores, scaled for powers of 2."""
    assert call.r is not None
    layout = call.layout
    grid = (layout.group_rows // tile.rows, layout.heads * RESIDUES)
    forward.position_kernel[grid](
        matrix(position, tile.rows, call.q.shape[3]), table(call.r, tile.columns), call.bias,
        matrix(layout.by_distance(scores), tile.rows, tile.columns), layout.flag(scores), call.begin,
        layout.batch, layout.num_queries, layout.num_keys, call.r.shape[1], layout.group_rows, layout.pitch,
        layout.first, layout.pad, call.first_column, call.offset, call.ahead, call.window, call.root * LOG2E,
        call.limit, LIMITED=call.limit is not None, AGAIN=again,
        HAS_BIAS=call.bias is not None, BEGINS=call.begin is not None, WINDOW=call.window > 0,
        D=call.q.shape[3], BM=tile.rows, BN=tile.columns, PRECISION=call.precision, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip


def by_key(call: Arguments, scores: Tensor | None, tile: Tile) -> TensorDescriptor | None:
    """Tiles (queries, keys) of a buffer of scores."""
    if scores is None:
        return None
    view = call.layout.by_key(scores)
    strides = [stride if size > 1 else RESIDUES for stride, size in zip(view.stride(), view.shape, strict=True)]
    return TensorDescriptor(
        view, list(view.shape), [*strides[:-1], 1], [1, 1, tile.rows // RESIDUES, RESIDUES, tile.columns]
    )


def heads_inside(x: Tensor, length: int | None = None) -> Tensor:
    """Uninitialised (B, H, T, D), stored as (B, T, H, D) like the projections to and from heads."""
    batch, heads, rows, size = x.shape
    return x.new_empty(batch, rows if length is None else length, heads, size).transpose(1, 2)


def attend(call: Arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs (B, H, L, D), log-sum-exps (B, H, L) and the position scores."""
    q, tiles = call.q, tiles_for(call.q)
    # With spans, a single loop uses q + u, and ptxas reuses the registers of that sum too early: compute it before.
    apart = call.low is not None
    ready, tile, scores = prepare(call, content=apart), tiles.forward, None
    if ready.position is not None:
        scores = new_scores(call)
        position_scores(call, ready.position, scores, tiles.position, again=False)
    out = heads_inside(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(q.shape[2], tile.rows), q.shape[0] * q.shape[1])
    forward.forward_kernel[grid](
        blocks(ready.content, tile.rows), call.u, blocks(call.k, tile.columns), blocks(call.v, tile.columns),
        by_key(call, scores, tile), blocks(out, tile.rows), lse, call.begin, call.low, call.high, call.seed,
        **call.place(), scale=call.root * LOG2E, rate=call.rate,
        HAS_U=call.u is not None and not apart, BEGINS=call.begin is not None, **call.modes(),
        DROPOUT=call.rate > 0, HAS_X=scores is not None,
        D=q.shape[3], BM=tile.rows, BN=tile.columns, PRECISION=call.precision, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
    return out, lse, scores


class Gradients(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    r: Tensor | None
    u: Tensor | None
    w: Tensor | None
    bias: Tensor | None


def differentiate(
    call: Arguments, out: Tensor, lse: Tensor, scores: Tensor | None, d_out: Tensor, d_lse: Tensor | None
) -> Gradients:
    """Gradients; `scores` of `attend`, if kept, are overwritten, and computed again if they were overwritten before."""
    tiles, ready = tiles_for(call.q), prepare(call, content=True)
    kept, scores = scores is not None, new_scores(call) if scores is None else scores
    (content, position), dr, dw, dbias = ready, None, None, None
    if position is not None:
        position_scores(call, position, scores, tiles.position, again=kept)
    delta = _delta(call, out, d_out, d_lse)
    dk, dv = _key_value(call, content, scores, d_out, lse, delta, tiles.key_value)
    del ready, content  # free memory early
    d_scores = scores.view(call.q.dtype)
    if position is not None:
        dr, dbias = _relation(call, d_scores, position, tiles.relation)
    del position
    dq = heads_inside(call.q)
    if call.r is not None:
        dw = _position_query(call, d_scores, dq, tiles.position_query)
    du = _query(call, d_scores, dq, tiles.query)
    return Gradients(dq, dk, dv, dr, _total(du, call.u), _total(dw, call.w), dbias)


def _total(parts: Tensor | None, table: Tensor | None) -> Tensor | None:
    """The gradient of a table (H, D) from its parts (H, N, D)."""
    if parts is None or table is None:
        return None
    total = torch.empty_like(table)
    backward.sum_kernel[(parts.shape[0],)](
        parts, total, parts.shape[1], *parts.stride()[:2], D=parts.shape[2], BM=32
    )  # fmt: skip
    return total


def _delta(call: Arguments, out: Tensor, d_out: Tensor, d_lse: Tensor | None) -> Tensor:
    delta = torch.empty(out.shape[:3], dtype=torch.float32, device=out.device)
    grid = (triton.cdiv(out.shape[2], 64), out.shape[0] * out.shape[1])
    backward.delta_kernel[grid](
        out, d_out, d_lse, delta, *out.stride()[:3], *d_out.stride()[:3], out.shape[1], out.shape[2],
        HAS_DLSE=d_lse is not None, D=out.shape[3], BM=64,
    )  # fmt: skip
    return delta


def _key_value(
    call: Arguments, content: Tensor, scores: Tensor, d_out: Tensor, lse: Tensor, delta: Tensor, tile: Tile
) -> tuple[Tensor, Tensor]:
    """dk and dv; the gradient of the scores overwrites the position scores."""
    dk, dv = heads_inside(call.k), heads_inside(call.v)
    grid = (triton.cdiv(call.k.shape[2], tile.columns), call.q.shape[0] * call.q.shape[1])
    positions = by_key(call, scores, tile) if call.r is not None else None
    backward.key_value_kernel[grid](
        blocks(content, tile.rows), blocks(call.k, tile.columns), blocks(call.v, tile.columns),
        blocks(d_out, tile.rows), positions, by_key(call, scores.view(call.q.dtype), tile), call.layout.flag(scores),
        blocks(dk, tile.columns), blocks(dv, tile.columns), lse, delta, call.begin, call.low, call.high, call.limit,
        call.seed,
        **call.place(), scale=call.root * LOG2E, root=call.root, rate=call.rate,
        BEGINS=call.begin is not None, **call.modes(), LIMITED=call.limit is not None, DROPOUT=call.rate > 0,
        HAS_X=positions is not None,
        D=call.q.shape[3], BM=tile.rows, BN=tile.columns, PRECISION=call.precision, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
    return dk, dv


def _position_query(call: Arguments, d_scores: Tensor, dq: Tensor, tile: Tile) -> Tensor:
    """Parts of dw; writes the part of dq that comes from positions."""
    assert call.r is not None
    layout = call.layout
    grid = (layout.group_rows // tile.rows, layout.heads * RESIDUES)
    sums = torch.empty(layout.heads, RESIDUES * grid[0], dq.shape[3], dtype=torch.float32, device=dq.device)
    backward.position_query_kernel[grid](
        matrix(layout.by_distance(d_scores), tile.rows, tile.columns), table(call.r, tile.columns), dq, sums,
        *dq.stride()[:3], layout.batch, layout.num_queries, layout.group_rows, layout.pitch, layout.first, layout.pad,
        call.first_column, call.root, layout.num_keys, call.offset, call.ahead, call.limit,
        LIMITED=call.limit is not None, D=dq.shape[3], BM=tile.rows, BN=tile.columns, PRECISION=call.precision,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return sums


def _query(call: Arguments, d_scores: Tensor, dq: Tensor, tile: Tile) -> Tensor:
    """Parts of du; adds the part of dq that comes from keys."""
    batch, heads, queries, size = dq.shape
    grid = (triton.cdiv(queries, tile.rows), batch * heads)
    sums = torch.empty(grid[0] * batch, heads, size, dtype=torch.float32, device=dq.device)
    backward.query_kernel[grid](
        by_key(call, d_scores, tile), blocks(call.k, tile.columns), dq, sums, call.begin, call.low, call.high,
        *dq.stride()[:3], **call.place(), root=call.root,
        BEGINS=call.begin is not None, **call.modes(), HAS_X=call.r is not None,
        D=size, BM=tile.rows, BN=tile.columns, PRECISION=call.precision, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return sums.transpose(0, 1)


def _relation(call: Arguments, d_scores: Tensor, position: Tensor, tile: Tile) -> tuple[Tensor, Tensor | None]:
    """dr and the gradient of the bias."""
    assert call.r is not None
    layout, (heads, columns, size) = call.layout, call.r.shape
    groups, scores = heads * RESIDUES, layout.by_distance(d_scores)
    parts = torch.empty(groups, layout.pitch, size, dtype=call.q.dtype, device=position.device)
    backward.relation_kernel[(triton.cdiv(layout.pitch, tile.columns), groups)](
        matrix(scores, tile.rows, tile.columns), matrix(position, tile.rows, size), parts, layout.batch,
        layout.group_rows, layout.pitch, layout.first, call.root, layout.num_queries, layout.num_keys, call.offset,
        call.ahead, call.limit, LIMITED=call.limit is not None, D=size, BM=tile.rows, BN=tile.columns,
        PRECISION=call.precision, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    unused = columns - layout.num_distances
    dr = _shifted_sum(layout, parts)
    dr = F.pad(dr, (0, 0, unused, 0)) if unused else dr
    if call.bias is None:
        return dr, None
    whole = (
        layout.clean(scores, call.offset + call.ahead, call.limit)
        .view(groups, layout.group_rows, -1)
        .sum(1, dtype=torch.float32)
    )
    dbias = _shifted_sum(layout, whole[..., None])[..., 0] * call.root
    return dr, F.pad(dbias, (unused, 0)).to(call.bias)


def _shifted_sum(layout: Layout, parts: Tensor) -> Tensor:
    """Sums of (H * 8, pitch, N) over residues by distance, (H, distances, N); each residue begins a column later."""
    pitch, size = parts.shape[1:]
    shape = (layout.heads, RESIDUES, layout.num_distances, size)
    strides = (RESIDUES * pitch * size, pitch * size + size, size, 1)
    return parts.as_strided(shape, strides, layout.pad * size).sum(1)
