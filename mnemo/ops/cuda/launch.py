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
KEPT_SHARE = 1 / 384
"""Position scores of a call are kept for the backward pass up to this share of the GPU's memory."""
KEPT_BY_ALL = 1 / 32
"""Likewise for all layers of a model that make such calls: every layer keeps its own."""
INTERPRETED_MEMORY = 2**37
QUERY_TILE = 128
"""Statistics of queries are padded to a multiple of this many, at least the queries of any tile."""


class Tile(NamedTuple):
    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None
    """Most registers of a thread, so that more programs run at once"""


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of every kernel: queries x keys, or rows x distances in kernels that go by distance."""

    position: Tile = Tile(64, 64, 4, 4)
    forward: Tile = Tile(64, 64, 4, 3)
    key_value: Tile = Tile(32, 64, 4, 4)
    position_query: Tile = Tile(64, 64, 4, 3)
    """At most the rows of `position`, as in `relation`; as many warps as that and `query`, which share a kernel"""
    query: Tile = Tile(64, 64, 4, 3)
    """Keys: a part of those of `key_value`, which writes whole tiles"""
    relation: Tile = Tile(64, 128, 4, 3)
    add_in_forward: bool = False
    """Whether the forward kernel adds q + u itself: a sum in registers saves shared memory"""

    @property
    def unit(self) -> int:
        """Columns that all kernels by distance skip or read at once."""
        return max(self.position.columns, self.position_query.columns, self.relation.columns)

    def shallow(self) -> Tiles:
        """For devices with little shared memory."""
        tiles = {name: value for name, value in vars(self).items() if isinstance(value, Tile)}
        return replace(self, **{name: tile._replace(stages=1) for name, tile in tiles.items()})


SMALL = Tiles()
PLAIN = replace(SMALL, key_value=Tile(32, 64, 4, 3, registers=128))
"""Calls without positions"""
WIDE = Tiles(
    position=Tile(64, 64, 4, 3),
    key_value=Tile(32, 64, 4, 3),
    position_query=Tile(64, 64, 4, 4),
    add_in_forward=True,
)
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


def tiles_for(q: Tensor, positions: bool) -> Tiles:
    if q.dtype == torch.float32:
        return EXACT
    tiles = WIDE if q.shape[-1] > 64 else SMALL if positions else PLAIN
    return tiles if shared_memory(q.device) >= DEEP_MEMORY else tiles.shallow()


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use; in Triton's interpreter there is no limit."""
    if device.type != "cuda":
        return sys.maxsize
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def memory_size(device: torch.device) -> int:
    """Bytes of a GPU's memory."""
    if device.type != "cuda":
        return INTERPRETED_MEMORY
    return torch.cuda.get_device_properties(device).total_memory


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
    gate: Tensor | None
    """(B, L, H) contiguous: the output of every head and row is multiplied by the sigmoid"""
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
    num_calls: int = 1
    """Calls of this size that are waiting for their backward passes at the same time, one for each layer"""

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

    @property
    def reach(self) -> int:
        """No query sees a key that is farther ahead; only tables of positions tell."""
        return self.k.shape[2] if self.r is None else self.ahead

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


def keep_scores(call: Arguments) -> bool:
    """Whether position scores are kept for the backward pass, or computed again there."""
    kept, memory = _kept_elements(call) * call.score_dtype.itemsize, memory_size(call.q.device)
    return call.r is not None and kept <= KEPT_SHARE * memory and kept * call.num_calls <= KEPT_BY_ALL * memory


def _kept_elements(call: Arguments) -> int:
    return call.layout.num_elements + call.layout.num_rows * call.q.shape[3] + call.q.numel() * (call.u is not None)


def new_scores(call: Arguments, keep: bool = False) -> Tensor:
    """An uninitialised buffer of scores; to be kept, with space for the prepared queries after them."""
    size = _kept_elements(call) if keep else call.layout.num_elements
    return torch.empty(size, dtype=call.score_dtype, device=call.q.device)


def kept_queries(call: Arguments, scores: Tensor) -> Prepared:
    """The prepared queries in a buffer of scores that is kept."""
    rows = call.layout.num_rows
    after = scores[call.layout.num_elements :].view(call.q.dtype)
    position, content = after.split([rows * call.q.shape[3], after.numel() - rows * call.q.shape[3]])
    return Prepared(call.q if call.u is None else content.view(call.q.shape), position.view(rows, call.q.shape[3]))


def new_queries(call: Arguments, content: bool) -> Prepared:
    """Uninitialised tensors for the queries plus biases that a call has; `content`: whether q + u is needed."""
    q, rows = call.q, call.layout.num_rows
    position = None if call.r is None else torch.empty(rows, q.shape[3], dtype=q.dtype, device=q.device)
    add = content and call.u is not None
    return Prepared(torch.empty(q.shape, dtype=q.dtype, device=q.device) if add else q, position)


def prepare(call: Arguments, ready: Prepared) -> None:
    """Compute the queries plus biases."""
    q, layout, rows = call.q, call.layout, 64
    add = ready.content is not q
    if not add and ready.position is None:
        return
    grid = (triton.cdiv(layout.residue_rows * RESIDUES, rows), layout.batch * layout.heads)
    forward.prepare_kernel[grid](
        q, call.u, call.w, ready.content, ready.position, *q.stride()[:3], layout.batch, layout.heads,
        layout.num_queries, layout.residue_rows, layout.group_rows, HAS_U=add, HAS_W=call.w is not None,
        HAS_X=ready.position is not None, PAD=layout.group_rows > layout.batch * layout.residue_rows,
        D=q.shape[3], BM=rows,
    )  # fmt: skip


def position_scores(call: Arguments, position: Tensor, scores: Tensor, tiles: Tiles, again: bool) -> None:
    """Fill a buffer with position scores, scaled for powers of 2."""
    assert call.r is not None
    layout, tile = call.layout, tiles.position
    grid = (layout.group_rows // tile.rows * layout.heads * RESIDUES,)
    forward.position_kernel[grid](
        matrix(position, tile.rows, call.q.shape[3]), table(call.r, tile.columns), call.bias,
        matrix(layout.by_distance(scores), tile.rows, tile.columns), layout.flag(scores), call.begin,
        layout.batch, layout.num_queries, layout.num_keys, call.r.shape[1], layout.group_rows, layout.pitch,
        layout.first, layout.pad, call.first_column, call.offset, call.ahead, call.window, call.root * LOG2E,
        call.limit, LIMITED=call.limit is not None, AGAIN=again,
        HAS_BIAS=call.bias is not None, BEGINS=call.begin is not None, WINDOW=call.window > 0,
        D=call.q.shape[3], BM=tile.rows, BN=tile.columns, UNIT=tiles.unit, PRECISION=call.precision,
        STAGES=tile.stages, num_warps=tile.warps,
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


def attend(call: Arguments, keep: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs (B, H, L, D), log-sum-exps (B, H, L) and the position scores, to `keep` for the backward pass or not."""
    q, tiles = call.q, tiles_for(call.q, call.r is not None)
    tile, scores = tiles.forward, None if call.r is None else new_scores(call, keep)
    # With spans, ptxas reuses the registers of a sum in the kernel too early.
    add = tiles.add_in_forward and call.u is not None and call.low is None
    ready = new_queries(call, content=not add) if scores is None or not keep else kept_queries(call, scores)
    prepare(call, ready)
    if scores is not None and ready.position is not None:
        position_scores(call, ready.position, scores, tiles, again=False)
    out = heads_inside(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(q.shape[2], tile.rows) * q.shape[0] * q.shape[1],)
    forward.forward_kernel[grid](
        blocks(q if add else ready.content, tile.rows), call.u, blocks(call.k, tile.columns),
        blocks(call.v, tile.columns),
        by_key(call, scores, tile), blocks(out, tile.rows), lse, call.gate, call.begin, call.low, call.high, call.seed,
        **call.place(), scale=call.root * LOG2E, rate=call.rate,
        HAS_U=add, HAS_GATE=call.gate is not None, BEGINS=call.begin is not None, **call.modes(),
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
    gate: Tensor | None


def differentiate(
    call: Arguments, out: Tensor, lse: Tensor, scores: Tensor | None, d_out: Tensor, d_lse: Tensor | None
) -> Gradients:
    """Gradients; `scores` of `attend`, if kept, are overwritten, and computed again if they were overwritten before."""
    tiles, kept = tiles_for(call.q, call.r is not None), scores is not None
    if scores is None:
        scores, ready = new_scores(call), new_queries(call, content=True)
        prepare(call, ready)
    else:
        ready = kept_queries(call, scores)
    content, position = ready
    if position is not None:
        position_scores(call, position, scores, tiles, again=kept)
    shift, delta, dgate = _statistics(call, out, lse, d_out, d_lse)
    dk, dv = _key_value(call, content, scores, d_out, shift, delta, tiles)
    del ready, content  # free memory early
    d_scores = scores.view(call.q.dtype)
    if position is None:
        dq, du_parts = _query(call, d_scores, tiles.query)
        dr, dw = None, None if call.w is None else torch.zeros_like(call.w)  # w has no effect without positions
        du = None if call.u is None else du_parts.sum(0).to(call.u)
    else:
        dq, dr, du, dw = _sums(call, _products(call, d_scores, position, tiles))
    dbias = None if call.bias is None else _bias_gradient(call, d_scores)
    return Gradients(dq, dk, dv, dr, du, dw, dbias, dgate)


def _statistics(
    call: Arguments, out: Tensor, lse: Tensor, d_out: Tensor, d_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of every query (B * H, padded L): its log-sum-exp for powers of 2, and the mean gradient of its probabilities;
    and the gradient of its gates."""
    batch, heads, rows, size = out.shape
    shape = (batch * heads, triton.cdiv(rows, QUERY_TILE) * QUERY_TILE)
    shift, delta = (torch.empty(shape, dtype=torch.float32, device=out.device) for _ in range(2))
    dgate = None if call.gate is None else torch.empty_like(call.gate)
    backward.delta_kernel[(shape[1] // 64, shape[0])](
        out, d_out, lse, d_lse, call.gate, shift, delta, dgate, *out.stride()[:3], *d_out.stride()[:3], heads, rows,
        shape[1], HAS_DLSE=d_lse is not None, HAS_GATE=dgate is not None, D=size, BM=64,
    )  # fmt: skip
    return shift, delta, dgate


def _key_value(
    call: Arguments, content: Tensor, scores: Tensor, d_out: Tensor, shift: Tensor, delta: Tensor, tiles: Tiles
) -> tuple[Tensor, Tensor]:
    """dk and dv; the gradient of the scores overwrites the position scores."""
    tile = tiles.key_value
    dk, dv = heads_inside(call.k), heads_inside(call.v)
    grid = (triton.cdiv(call.k.shape[2], tile.columns) * call.q.shape[0] * call.q.shape[1],)
    positions = by_key(call, scores, tile) if call.r is not None else None
    backward.key_value_kernel[grid](
        blocks(content, tile.rows), blocks(call.k, tile.columns), blocks(call.v, tile.columns),
        blocks(d_out, tile.rows), positions, by_key(call, scores.view(call.q.dtype), tile), call.layout.flag(scores),
        blocks(dk, tile.columns), blocks(dv, tile.columns), shift, delta, call.begin, call.low, call.high, call.limit,
        call.seed, shift.shape[1], call.reach,
        **call.place(), scale=call.root * LOG2E, root=call.root, rate=call.rate,
        BEGINS=call.begin is not None, **call.modes(), LIMITED=call.limit is not None, DROPOUT=call.rate > 0,
        HAS_X=positions is not None,
        D=call.q.shape[3], BM=tile.rows, BN=tile.columns, UNIT=max(tile.rows, tiles.query.rows),
        PRECISION=call.precision, STAGES=tile.stages, num_warps=tile.warps, maxnreg=tile.registers,
    )  # fmt: skip
    return dk, dv


class Parts(NamedTuple):
    """Parts of gradients, to be added up."""

    dq: Tensor
    """From keys, like the queries"""
    dq_position: Tensor
    """From positions, like the queries"""
    du: Tensor
    """(N, H, D)"""
    dw: Tensor
    """(H, N, D)"""
    dr: Tensor
    """(H * 8, pitch, D) for the residues of each head"""


def _products(call: Arguments, d_scores: Tensor, position: Tensor, tiles: Tiles) -> Parts:
    """All products with the gradient of the scores."""
    assert call.r is not None
    layout, size, device = call.layout, call.q.shape[3], call.q.device
    rows, columns, queries = tiles.position_query, tiles.relation, tiles.query
    scores, num_tiles = layout.by_distance(d_scores), layout.group_rows // rows.rows
    by_distance, query_tiles = triton.cdiv(layout.pitch, columns.columns) + num_tiles, _query_tiles(call, queries)
    parts = Parts(
        dq=heads_inside(call.q),
        dq_position=heads_inside(call.q),
        du=torch.empty(query_tiles, layout.heads, size, dtype=torch.float32, device=device),
        dw=torch.empty(layout.heads, RESIDUES * num_tiles, size, dtype=torch.float32, device=device),
        dr=torch.empty(layout.heads * RESIDUES, layout.pitch, size, dtype=call.q.dtype, device=device),
    )
    backward.product_kernel[(RESIDUES * by_distance + query_tiles, layout.heads)](
        matrix(scores, rows.rows, rows.columns), table(call.r, rows.columns), parts.dq_position, parts.dw,
        matrix(scores, columns.rows, columns.columns), matrix(position, columns.rows, size), parts.dr,
        by_key(call, d_scores, queries), blocks(call.k, queries.columns), parts.dq, parts.du,
        call.begin, call.low, call.high, call.limit, *parts.dq.stride()[:3], layout.batch, layout.group_rows,
        layout.pitch, layout.first, layout.pad, call.first_column, call.ahead, call.root, **call.place(),
        LIMITED=call.limit is not None, BEGINS=call.begin is not None, **call.modes(), D=size,
        PBM=rows.rows, PBN=rows.columns, RBM=columns.rows, RBN=columns.columns, QBM=queries.rows, QBN=queries.columns,
        PRECISION=call.precision, PSTAGES=rows.stages, RSTAGES=columns.stages, QSTAGES=queries.stages,
        num_warps=columns.warps,
    )  # fmt: skip
    return parts


def _query_tiles(call: Arguments, tile: Tile) -> int:
    """Of one head, for all rows of the batch."""
    batch, _, queries, _ = call.q.shape
    return -(-queries // tile.rows) * batch


def _query(call: Arguments, d_scores: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """dq without positions, and parts (N, H, D) of du."""
    batch, heads, _, size = call.q.shape
    dq, num_tiles = heads_inside(call.q), _query_tiles(call, tile)
    sums = torch.empty(num_tiles, heads, size, dtype=torch.float32, device=dq.device)
    backward.query_kernel[(num_tiles * heads,)](
        by_key(call, d_scores, tile), blocks(call.k, tile.columns), dq, sums, call.begin, call.low, call.high,
        *dq.stride()[:3], batch, **call.place(), root=call.root, BEGINS=call.begin is not None, **call.modes(),
        D=size, BM=tile.rows, BN=tile.columns, PRECISION=call.precision, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return dq, sums


def _sums(call: Arguments, parts: Parts) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """dq, dr, du and dw from their parts."""
    assert call.r is not None
    dr = torch.empty_like(call.r)
    du, dw = (None if x is None else torch.empty_like(x) for x in (call.u, call.w))
    layout, rows, block, columns = call.layout, 32, 4096, call.r.shape[1]
    dq_programs = triton.cdiv(parts.dq.numel(), block * layout.heads)
    backward.sum_kernel[(2 + triton.cdiv(columns, rows) + dq_programs, layout.heads)](
        parts.du, du, parts.dw, dw, parts.dr, dr, parts.dq_position, parts.dq, parts.du.shape[0], parts.du.stride(1),
        parts.du.stride(0), parts.dw.shape[1], *parts.dw.stride()[:2], columns, columns - layout.num_distances,
        layout.pad, layout.pitch, parts.dq.numel(),
        HAS_U=du is not None, HAS_W=dw is not None, D=parts.du.shape[2], BM=rows, BLOCK=block,
    )  # fmt: skip
    return parts.dq, dr, du, dw


def _bias_gradient(call: Arguments, d_scores: Tensor) -> Tensor:
    """Sums over queries by residue, whose columns begin one later each, then over residues."""
    assert call.r is not None and call.bias is not None
    layout = call.layout
    scores = layout.clean(layout.by_distance(d_scores), call.offset + call.ahead, call.limit)
    sums = scores.view(layout.heads * RESIDUES, layout.group_rows, -1).sum(1, dtype=torch.float32)
    shape = (layout.heads, RESIDUES, layout.num_distances)
    total = sums.as_strided(shape, (RESIDUES * layout.pitch, layout.pitch + 1, 1), layout.pad).sum(1)
    return F.pad(total * call.root, (call.r.shape[1] - layout.num_distances, 0)).to(call.bias)
