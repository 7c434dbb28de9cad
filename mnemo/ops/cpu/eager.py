"""Fast relative attention in plain PyTorch: the path of a CPU, and the fallback on every device.

Four differences from the published formulation: heads are the first dimension, so that matrix products need no copies
of their operands; queries are computed in blocks, which skip keys that no query of a block sees; on a CPU, rows and
heads are computed in tiles whose scores stay in its cache; position scores are shifted by views of one padded buffer.
Forward and backward passes are explicit.

Shapes: N = heads * rows of a tile, L queries and K keys of a block, W columns of positions, D head size. A block's
columns run from the distance of its last query and first key downwards, so score (i, j) reads column j + L - 1 - i of
the unskewed scores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mnemo.ops.cpu import by_head
from mnemo.ops.cpu.by_head import Piece, attend_by_head
from mnemo.ops.cpu.single_query import attend_single, is_single
from mnemo.ops.dropout import keep_mask
from mnemo.ops.masks import Causal, Mask

QUERY_BLOCK = 128
CPU_TILE = 2**20
"""Largest number of scores, keys and values of a tile for each CPU thread, so that they stay in its cache; in half
precision twice as many."""
HALF = (torch.bfloat16, torch.float16)
INFERENCE_TYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Types that `by_head`, which needs exponentials of a wide range, and `single_query` compute."""
KEPT_BYTES = 2**27
"""A thread's buffers are used by its next call unless they have more bytes."""


class _Call(NamedTuple):
    """The settings that all blocks of a call share."""

    offset: int
    num_columns: int
    """Columns of r and bias"""
    ahead: int
    mask: Mask
    lengths: Tensor | None
    dropout: float


class _Block(NamedTuple):
    queries: slice
    keys: slice
    columns: slice


_Tables = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""r, u, w and bias"""
_Hidden = tuple[slice, Tensor]
"""A range of a block's keys, and whether they are hidden: (L, K'), or (B, L, K') if rows differ"""


class _Tile(NamedTuple):
    rows: slice
    heads: slice

    def of(self, x: Tensor) -> Tensor:
        """This tile of (B, H, ...), heads first."""
        return x[self.rows, self.heads].transpose(0, 1)

    def flat(self, x: Tensor) -> Tensor:
        """This tile of (B, H, T, D) as dense (N, T, D)."""
        return _dense(self.of(x).reshape(-1, *x.shape[2:]))

    def put(self, x: Tensor, span: slice, part: Tensor) -> None:
        """Write (N, T, ...) into a span of this tile of (B, H, ...)."""
        target = self.of(x)[:, :, span]
        target.copy_(part.view(target.shape))


class _Operands(NamedTuple):
    """One tile of the inputs."""

    content: Tensor
    """(N, L, D): scaled queries for keys"""
    position: Tensor
    """(heads, rows, L, D): scaled queries for positions"""
    k: Tensor
    v: Tensor
    """(N, K, D)"""
    r: Tensor | None
    bias: Tensor | None
    """(heads, W, D) and (heads, W), scaled"""

    @staticmethod
    def of(
        tile: _Tile,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor | None,
        u: Tensor | None,
        w: Tensor | None,
        bias: Tensor | None,
    ) -> _Operands:
        scale = q.shape[-1] ** -0.5
        queries = tile.of(q).contiguous() * scale
        content = queries if u is None else torch.add(queries, u[tile.heads, None, None], alpha=scale)
        return _Operands(
            content=content.flatten(0, 1),
            position=queries if w is None else torch.add(queries, w[tile.heads, None, None], alpha=scale),
            k=tile.flat(k),
            v=tile.flat(v),
            r=None if r is None else r[tile.heads],
            bias=None if bias is None else bias[tile.heads] * scale,
        )

    def positions(self, block: _Block) -> Tensor:
        """A block's queries for positions, (heads, rows * L, D)."""
        return self.position[:, :, block.queries].flatten(1, 2)


def _dense(x: Tensor) -> Tensor:
    """(N, T, D) with contiguous matrices, or its transpose: several products then use it faster."""
    return x if x.stride(1) in (1, x.shape[2]) else x.contiguous()


def _blocks(call: _Call, num_queries: int, num_keys: int) -> list[_Block]:
    if not isinstance(call.mask, Causal):
        return [_block(call, slice(0, num_queries), slice(0, num_keys))]
    blocks = []
    for begin in range(0, num_queries, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, num_queries)
        first = 0 if call.mask.window is None else max(0, call.offset + begin - call.mask.window + 1)
        blocks.append(_block(call, slice(begin, end), slice(first, min(num_keys, call.offset + end))))
    return blocks


def _block(call: _Call, queries: slice, keys: slice) -> _Block:
    farthest = call.offset + queries.stop - 1 - keys.start
    nearest = max(-call.ahead, call.offset + queries.start - keys.stop + 1)
    zero = call.num_columns - 1 - call.ahead
    return _Block(queries, keys, slice(zero - farthest, zero - nearest + 1))


def _tiles(q: Tensor, blocks: Sequence[_Block]) -> list[_Tile]:
    batch, heads, _, size = q.shape
    if q.device.type != "cpu":
        return [_Tile(slice(0, batch), slice(0, heads))]
    budget = CPU_TILE * torch.get_num_threads() * (2 if q.dtype in HALF else 1)
    num_keys = max(_length(block.keys) for block in blocks)
    scores = num_keys * max(_length(block.queries) for block in blocks)
    per_row = heads * (scores + 2 * num_keys * size)
    return [
        _Tile(rows, part)
        for rows in _spans(batch, max(1, budget // per_row))
        for part in _spans(heads, max(1, budget // scores))
    ]


def _spans(total: int, at_most: int) -> list[slice]:
    """Slices of about equal lengths."""
    count = -(-total // at_most)
    edges = [total * i // count for i in range(count + 1)]
    return [slice(begin, end) for begin, end in zip(edges, edges[1:], strict=False)]


def _length(span: slice) -> int:
    return span.stop - span.start


def _skewed(scores: Tensor, num_keys: int) -> Tensor:
    """The (N, L, K) view of (N, L, W) whose (i, j) is column j + L - 1 - i; past the last column it is garbage."""
    count, rows, columns = scores.shape
    strides = (rows * columns, columns - 1, 1)
    return scores.as_strided((count, rows, num_keys), strides, scores.storage_offset() + rows - 1)


class _Scratch:
    """Buffers that blocks, tiles and later calls use again: new ones would cost page faults."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.buffers = like, dict[tuple[str, tuple[int, ...]], Tensor]()

    def buffer(self, name: str, *shape: int) -> Tensor:
        """A buffer with its previous contents; zeros at first."""
        key = (name, shape)
        if key not in self.buffers:
            self.buffers[key] = self.like.new_zeros(shape)
        return self.buffers[key]

    def unskewed(self, scores: Tensor, num_columns: int) -> Tensor:
        """A buffer (N, L, W) for unskewed scores, zero except its `_skewed` view of shape (N, L, K), which the caller
        fills. It has K + 1 columns if W is less, so that the view does not overlap itself."""
        count, rows, num_keys = scores.shape
        return self.buffer(f"unskewed {num_keys}", count, rows, max(num_columns, num_keys + 1))

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers.values())


_kept = threading.local()


def _scratch(like: Tensor) -> _Scratch:
    """The buffers of this thread's last call with such tensors; new ones if those became too large."""
    if like.device.type != "cpu" or type(like) is not Tensor or torch.compiler.is_compiling():
        return _Scratch(like)
    key = (like.dtype, torch.is_inference_mode_enabled())
    last: tuple[object, _Scratch] | None = getattr(_kept, "last", None)
    if last is None or last[0] != key or last[1].num_bytes > KEPT_BYTES:
        last = _kept.last = (key, _Scratch(torch.empty(0, dtype=like.dtype, device=like.device)))
    return last[1]


def _hidden(call: _Call, block: _Block, num_keys: int, device: torch.device) -> list[_Hidden]:
    """The keys that are hidden from the queries of a block."""
    rows, columns = _length(block.queries), _length(block.keys)
    first = call.offset + block.queries.start - block.keys.start  # the key at the first query's position
    hidden: list[tuple[slice, Tensor]] = []
    if not isinstance(call.mask, Causal):
        hidden.append((slice(0, columns), ~call.mask.visible(rows, columns, call.offset, device)))
    else:
        query = torch.arange(first, first + rows, device=device)[:, None]
        near, far = first + 1, 0 if call.mask.window is None else first + rows - call.mask.window
        if columns > near:
            hidden.append((slice(near, columns), torch.arange(near, columns, device=device) > query))
        if far > 0 and call.mask.window is not None:
            hidden.append((slice(0, far), query - torch.arange(far, device=device) >= call.mask.window))
    if call.lengths is not None:
        first_valid = num_keys - block.keys.start - call.lengths
        # Reading a value would synchronise other devices.
        widest = int(first_valid.max()) if device.type == "cpu" else columns
        index = torch.arange(max(0, min(columns, widest)), device=device)
        hidden.append((slice(0, len(index)), (index < first_valid[:, None])[:, None, :]))
    return hidden


def _hide_(scores: Tensor, hidden: list[_Hidden], tile: _Tile) -> None:
    """Give hidden keys a score of -inf. scores (N, L, K)."""
    by_row = scores.view(_length(tile.heads), -1, *scores.shape[1:])
    for keys, mask in hidden:
        by_row[..., keys].masked_fill_(mask[tile.rows] if mask.dim() == 3 and len(mask) > 1 else mask, float("-inf"))


def _copies_views(x: Tensor) -> bool:
    """Whether products copy a skewed view first: on a CPU, those in half precision do, and elementwise operations there
    take several times as long as in single precision."""
    return x.device.type == "cpu" and x.dtype in HALF


def _position_scores(part: _Operands, r: Tensor, block: _Block, scratch: _Scratch) -> Tensor:
    """Scores of a block's queries and columns, (heads, rows * L, W), in a buffer that the next block overwrites."""
    queries, table = part.positions(block), r[:, block.columns].transpose(1, 2)
    position = scratch.buffer("position", *queries.shape[:2], table.shape[2])
    return torch.bmm(queries, table, out=position)


def _scores(part: _Operands, block: _Block, scratch: _Scratch) -> Tensor:
    """Scaled scores of one block before the mask, (N, L, K)."""
    content, keys = part.content[:, block.queries], part.k[:, block.keys].transpose(1, 2)
    if part.r is not None and part.bias is None and _copies_views(content):
        position = _position_scores(part, part.r, block, scratch)
        return torch.baddbmm(_skewed(position.view(*content.shape[:2], -1), keys.shape[2]), content, keys)
    scores = torch.bmm(content, keys)
    if part.r is not None:
        position = _position_scores(part, part.r, block, scratch)
        if part.bias is not None:
            position += part.bias[:, None, block.columns]
    elif part.bias is not None:
        queries = part.position.shape[1] * scores.shape[1]
        position = part.bias[:, None, block.columns].expand(-1, queries, -1).contiguous()
    else:
        return scores
    return scores.add_(_skewed(position.view(*scores.shape[:2], -1), scores.shape[2]))


class _Forward(NamedTuple):
    out: Tensor
    lse: Tensor | None
    saved: list[Tensor]
    """The probabilities of every tile and block; with dropout, each followed by the probabilities after dropout"""
    blocks: list[_Block]
    tiles: list[_Tile]


def _forward(q: Tensor, k: Tensor, v: Tensor, tables: _Tables, call: _Call, *, with_lse: bool, save: bool) -> _Forward:
    batch, heads, num_queries, size = q.shape
    blocks = _blocks(call, num_queries, k.shape[2])
    tiles = _tiles(q, blocks)
    hidden = [_hidden(call, block, k.shape[2], q.device) for block in blocks]
    out = q.new_empty(batch, num_queries, heads, size).transpose(1, 2)
    lse = q.new_empty(batch, heads, num_queries) if with_lse else None
    saved, scratch = list[Tensor](), _scratch(q)
    for tile in tiles:
        part = _Operands.of(tile, q, k, v, *tables)
        for block, masks in zip(blocks, hidden, strict=True):
            scores = _scores(part, block, scratch)
            _hide_(scores, masks, tile)
            largest = None if lse is None else scores.amax(-1)
            probabilities = [torch.softmax(scores, -1, out=scores if scores.device.type == "cpu" else None)]
            if lse is not None and largest is not None:
                # The largest probability is exp(largest - lse): no second pass of exponentials.
                tile.put(lse, block.queries, largest - probabilities[0].amax(-1).log())
            if call.dropout > 0:
                probabilities.append(probabilities[0] * keep_mask(scores.shape, call.dropout, scores))
            tile.put(out, block.queries, torch.bmm(probabilities[-1], part.v[:, block.keys]))
            if save:
                saved += probabilities
    return _Forward(out, lse, saved, blocks, tiles)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, r, u, w, bias, call: _Call, with_lse: bool):
        out, lse, saved, *ctx.layout = _forward(q, k, v, (r, u, w, bias), call, with_lse=with_lse, save=True)
        ctx.save_for_backward(q, k, v, r, u, w, bias, out, *saved)
        ctx.per_block = 1 if call.dropout == 0 else 2
        return out, q.new_empty(0) if lse is None else lse

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out, d_lse):
        q, k, v, r, u, w, bias, out, *saved = ctx.saved_tensors
        delta = (d_out * out).sum(-1)
        if d_lse.numel():
            delta -= d_lse
        gradients = _Gradients(q, k, v, r, u, w, bias)
        blocks, tiles = ctx.layout
        for tile in tiles:
            d_rows, mean = tile.flat(d_out), tile.flat(delta[..., None])
            gradients.begin(tile)
            for block in blocks:
                gradients.add(block, saved[: ctx.per_block], d_rows[:, block.queries], mean[:, block.queries])
                del saved[: ctx.per_block]
            gradients.end()
        return *gradients.result(), None, None


class _Gradients:
    """Sums the gradients of one call, tile by tile and block by block."""

    tile: _Tile
    part: _Operands
    dk: Tensor
    dv: Tensor

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, *tables: Tensor | None) -> None:
        self.inputs, self.scratch = (q, k, v, *tables), _scratch(q)
        self.q, self.k, self.v = _heads_inside(q), _heads_inside(k), _heads_inside(v)
        self.r, self.u, self.w, self.bias = (
            None if table is None else table.new_zeros(table.shape) for table in tables
        )

    def begin(self, tile: _Tile) -> None:
        self.tile, self.part = tile, _Operands.of(tile, *self.inputs)
        self.dk, self.dv = torch.zeros_like(self.part.k), torch.zeros_like(self.part.v)

    def end(self) -> None:
        everything = slice(0, self.k.shape[2])
        self.tile.put(self.k, everything, self.dk)
        self.tile.put(self.v, everything, self.dv)

    def add(self, block: _Block, probabilities: list[Tensor], d_rows: Tensor, mean: Tensor) -> None:
        """`mean` (N, L, 1): the probabilities' mean of their own gradients."""
        self.dv[:, block.keys].baddbmm_(probabilities[-1].transpose(1, 2), d_rows)
        d_scores = self.scratch.buffer("scores", *probabilities[0].shape)
        torch.bmm(d_rows, self.part.v[:, block.keys].transpose(1, 2), out=d_scores)
        unskewed = self.scratch.unskewed(d_scores, _length(block.columns))
        skewed = _skewed(unskewed, d_scores.shape[2])
        # Products that would copy a view get the gradient in a buffer of its own, which is copied to the view once.
        by_key = d_scores if _copies_views(d_scores) else skewed
        if len(probabilities) == 1:
            torch.mul(d_scores.sub_(mean), probabilities[0], out=by_key)
        else:
            torch.addcmul(d_scores.mul_(probabilities[1]), probabilities[0], mean, value=-1, out=by_key)
        if by_key is not skewed:
            skewed.copy_(by_key)
        self.dk[:, block.keys].baddbmm_(by_key.transpose(1, 2), self.part.content[:, block.queries])
        dq = torch.bmm(by_key, self.part.k[:, block.keys])
        self._add_heads(self.u, dq)
        by_head = unskewed.view(_length(self.tile.heads), -1, unskewed.shape[2])[..., : _length(block.columns)]
        if self.bias is not None:
            self.bias[self.tile.heads, block.columns].add_(by_head.sum(1))
        if self.part.r is not None and self.r is not None:
            if by_key is not skewed:
                by_head = self.scratch.buffer("by head", *by_head.shape).copy_(by_head)
            position = torch.bmm(by_head, self.part.r[:, block.columns])
            self._add_heads(self.w, position)
            dq.add_(position.view(dq.shape))
            self.r[self.tile.heads, block.columns].add_(torch.bmm(by_head.transpose(1, 2), self.part.positions(block)))
        self.tile.put(self.q, block.queries, dq.mul_(dq.shape[-1] ** -0.5))

    def _add_heads(self, total: Tensor | None, part: Tensor) -> None:
        """Add the sum of (heads, rows, L, D), in any shape, to the tile's heads of (H, D)."""
        if total is not None:
            total[self.tile.heads].add_(part.view(_length(self.tile.heads), -1, part.shape[-1]).sum(1))

    def result(self) -> tuple[Tensor | None, ...]:
        for unscaled in (self.u, self.w, self.bias):
            if unscaled is not None:
                unscaled *= self.q.shape[-1] ** -0.5
        return self.q, self.k, self.v, self.r, self.u, self.w, self.bias


def _heads_inside(x: Tensor) -> Tensor:
    """An empty tensor (B, H, T, D), stored as (B, T, H, D) like the projections to and from heads."""
    batch, heads, length, size = x.shape
    return x.new_empty(batch, length, heads, size).transpose(1, 2)


def _attend_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, tables: _Tables, call: _Call, with_lse: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Without gradients: the result of the fastest path that supports this call; None if there is none."""
    r, u, w, bias = tables
    if q.device.type != "cpu" or q.dtype not in INFERENCE_TYPES or bias is not None or call.dropout:
        return None
    if call.lengths is None and not with_lse and is_single(q, k, call.offset, call.mask):
        everything = _block(call, slice(0, 1), slice(0, k.shape[2]))
        return attend_single(q, k, v, None if r is None else r[:, everything.columns], u, w), None
    blocks = [] if r is None else _blocks(call, q.shape[2], k.shape[2])
    if not blocks or r is None or not all(by_head.suits(*block) for block in blocks):
        return None
    pieces = [Piece(*block, _hidden(call, block, k.shape[2], q.device)) for block in blocks]
    return attend_by_head(q, k, v, r, u, w, pieces, with_lse)


def relative_attention_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None = None,
    u: Tensor | None = None,
    w: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    offset: int,
    ahead: int = 0,
    mask: Mask = Causal(),
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As the reference, for masks whose keys ahead have the position of their negative distance."""
    if lengths is not None and lengths.device.type == "cpu" and bool((lengths >= k.shape[2]).all()):
        lengths = None
    r = None if r is None else _dense(r)
    table = r if r is not None else bias
    call = _Call(offset, 0 if table is None else table.shape[1], ahead, mask, lengths, dropout)
    if not torch.is_grad_enabled():
        done = _attend_on_cpu(q, k, v, (r, u, w, bias), call, with_lse)
        return done or _forward(q, k, v, (r, u, w, bias), call, with_lse=with_lse, save=False)[:2]
    out, lse = _Attention.apply(q, k, v, r, u, w, bias, call, with_lse)  # type: ignore[misc]
    return out, lse if with_lse else None
