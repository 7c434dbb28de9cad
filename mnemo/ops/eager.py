"""Relative attention in plain PyTorch, fast: the CPU's path and every device's fallback.

Three ideas against the published formulation: queries go in blocks, so that keys no query of a block can see are
never touched; the position scores are read through a skewed view instead of being copied into place; forward and
backward are written out by hand, so that one buffer of scores lives at a time.

Shapes: N = B * H, L queries, K keys, W columns of positions, D head size. A block's columns run from the distance of
its last query and first key downwards, so score (i, j) reads column j + L - 1 - i of the unskewed scores.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.ops.masks import Causal, Mask

QUERY_BLOCK = 128


class _Call(NamedTuple):
    """What a call's blocks share besides its tensors."""

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


def _skewed(scores: Tensor, num_keys: int) -> Tensor:
    """The (N, L, K) view of (N, L, W) whose (i, j) is column j + L - 1 - i; past the last column it is garbage."""
    count, rows, columns = scores.shape
    strides = (rows * columns, columns - 1, 1)
    return scores.as_strided((count, rows, num_keys), strides, scores.storage_offset() + rows - 1)


def _unskew(gradient: Tensor, num_columns: int) -> Tensor:
    """The adjoint of `_skewed` for a gradient that is zero past the last column."""
    count, rows, num_keys = gradient.shape
    if num_keys < num_columns:
        out = gradient.new_zeros(count, rows, num_columns)
        _skewed(out, num_keys).copy_(gradient)
        return out
    # As wide as its columns, the view overlaps itself: its last key is in use in the last row only.
    out = gradient.new_empty(count, rows, num_columns)
    flat = out.view(count, rows * num_columns)
    flat[:, : rows - 1] = 0
    body = flat[:, rows - 1 : rows - 1 + rows * (num_keys - 1)]
    body.view(count, rows, num_keys - 1).copy_(gradient[..., : num_keys - 1])
    flat[:, -1] = gradient[:, -1, -1]
    return out


def _hide_(scores: Tensor, call: _Call, block: _Block, num_keys: int) -> None:
    """Fill what a block's queries may not see. scores (B, H, L, K)."""
    rows, columns, device = *scores.shape[-2:], scores.device
    first = call.offset + block.queries.start - block.keys.start
    """The column that the block's first query stands on"""
    if not isinstance(call.mask, Causal):
        visible = call.mask.visible(rows, columns, call.offset, device)
        scores.masked_fill_(~visible.view(-1, 1, rows, columns), float("-inf"))
    elif columns > first + 1:
        future = torch.ones(rows, columns - first - 1, dtype=torch.bool, device=device).triu()
        scores[..., first + 1 :].masked_fill_(future, float("-inf"))
    if isinstance(call.mask, Causal) and call.mask.window is not None and first + rows > call.mask.window:
        newest = torch.arange(rows, device=device)[:, None] + first
        too_far = newest - torch.arange(columns, device=device) >= call.mask.window
        scores.masked_fill_(too_far, float("-inf"))
    if call.lengths is not None:
        index = torch.arange(block.keys.start, block.keys.stop, device=device)
        invalid = index < num_keys - call.lengths[:, None]
        scores.masked_fill_(invalid[:, None, None, :], float("-inf"))


def _scores(q: Tensor, k: Tensor, r: Tensor | None, u: Tensor | None, w: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scaled scores of one block, nothing hidden. q (B, H, L, D), k (B, H, K, D) -> (B, H, L, K)."""
    batch, heads, rows, size = q.shape
    num_keys, scale = k.shape[2], size**-0.5
    content = (q if u is None else q + u[:, None, :]).reshape(-1, rows, size)
    keys = k.reshape(-1, num_keys, size).transpose(1, 2)
    if r is not None:
        position = (q if w is None else q + w[:, None, :]) @ r.transpose(-1, -2)
        if bias is not None:
            position += bias[:, None, :]
    elif bias is not None:
        position = bias[:, None, :].expand(batch, heads, rows, -1)
    else:
        return torch.bmm(content, keys).mul_(scale).view(batch, heads, rows, num_keys)
    skewed = _skewed(position.reshape(batch * heads, rows, -1), num_keys)
    return torch.baddbmm(skewed, content, keys, beta=scale, alpha=scale).view(batch, heads, rows, num_keys)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, r, u, w, bias, call: _Call, with_lse: bool):
        blocks = _blocks(call, q.shape[2], k.shape[2])
        outs, lses, saved = [], [], []
        for block in blocks:
            tables = _columns(r, block), u, w, _columns(bias, block)
            scores = _scores(q[:, :, block.queries], k[:, :, block.keys], *tables)
            _hide_(scores, call, block, k.shape[2])
            if with_lse:
                lses.append(torch.logsumexp(scores, -1))
            probabilities = torch.softmax(scores, -1)
            keep = None
            if call.dropout > 0:
                keep = torch.empty_like(probabilities).bernoulli_(1 - call.dropout).div_(1 - call.dropout)
            outs.append((probabilities if keep is None else probabilities * keep) @ v[:, :, block.keys])
            saved += [probabilities, keep]
        ctx.save_for_backward(q, k, v, r, u, w, bias, *saved)
        ctx.blocks = blocks
        return torch.cat(outs, 2), torch.cat(lses, 2) if with_lse else q.new_empty(0)

    @staticmethod
    def backward(ctx, d_out, d_lse):  # type: ignore[override]
        q, k, v, r, u, w, bias, *saved = ctx.saved_tensors
        gradients = _Gradients(q, k, v, r, u, w, bias)
        for number, block in enumerate(ctx.blocks):
            probabilities, keep = saved[2 * number], saved[2 * number + 1]
            gradients.add(block, probabilities, keep, d_out, d_lse if d_lse is not None and d_lse.numel() else None)
        return *gradients.result(), None, None


class _Gradients:
    """Sums the gradients of one call block by block."""

    def __init__(self, q, k, v, r, u, w, bias) -> None:
        self.q, self.k, self.v, self.r, self.u, self.w, self.bias = q, k, v, r, u, w, bias
        self.dq_content: list[Tensor] = []
        self.dq_position: list[Tensor] = []
        self.dk, self.dv = torch.zeros_like(k), torch.zeros_like(v)
        self.dr = None if r is None else torch.zeros_like(r)
        self.dbias = None if bias is None else torch.zeros_like(bias)

    def add(
        self, block: _Block, probabilities: Tensor, keep: Tensor | None, d_out: Tensor, d_lse: Tensor | None
    ) -> None:
        d_rows = d_out[:, :, block.queries]
        dropped = probabilities if keep is None else probabilities * keep
        self.dv[:, :, block.keys] += dropped.transpose(-1, -2) @ d_rows
        d_scores = d_rows @ self.v[:, :, block.keys].transpose(-1, -2)
        if keep is not None:
            d_scores.mul_(keep)
        delta = (d_scores * probabilities).sum(-1, keepdim=True)
        if d_lse is not None:
            delta = delta - d_lse[:, :, block.queries, None]
        d_scores.sub_(delta).mul_(probabilities).mul_(self.q.shape[-1] ** -0.5)
        self._content(block, d_scores)
        if self.r is not None or self.bias is not None:
            self._position(block, d_scores)

    def _content(self, block: _Block, d_scores: Tensor) -> None:
        q = self.q[:, :, block.queries]
        self.dq_content.append(d_scores @ self.k[:, :, block.keys])
        content = q if self.u is None else q + self.u[:, None, :]
        self.dk[:, :, block.keys] += d_scores.transpose(-1, -2) @ content

    def _position(self, block: _Block, d_scores: Tensor) -> None:
        batch, heads, rows, num_keys = d_scores.shape
        num_columns = block.columns.stop - block.columns.start
        unskewed = _unskew(d_scores.reshape(-1, rows, num_keys), num_columns).view(batch, heads, rows, num_columns)
        if self.dbias is not None:
            self.dbias[:, block.columns] += unskewed.sum((0, 2))
        if self.r is None or self.dr is None:
            return
        q = self.q[:, :, block.queries]
        self.dq_position.append(unskewed @ self.r[:, block.columns])
        position = q if self.w is None else q + self.w[:, None, :]
        by_head = unskewed.transpose(0, 1).reshape(heads, -1, num_columns)  # (H, B * L, W)
        self.dr[:, block.columns] += by_head.transpose(1, 2) @ position.transpose(0, 1).reshape(heads, batch * rows, -1)

    def result(self) -> tuple[Tensor | None, ...]:
        dq = content = torch.cat(self.dq_content, 2)
        position = torch.cat(self.dq_position, 2) if self.dq_position else None
        if position is not None:
            dq = content + position
        du = None if self.u is None else content.sum((0, 2))
        dw = None if self.w is None or position is None else position.sum((0, 2))
        return dq, self.dk, self.dv, self.dr, du, dw, self.dbias


def _columns(table: Tensor | None, block: _Block) -> Tensor | None:
    return None if table is None else table[:, block.columns]


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
    """As the reference, where keys ahead are positioned by their negative distance."""
    if lengths is not None and lengths.device.type == "cpu" and bool((lengths >= k.shape[2]).all()):
        lengths = None
    table = r if r is not None else bias
    call = _Call(offset, 0 if table is None else table.shape[1], ahead, mask, lengths, dropout)
    out, lse = _Attention.apply(q, k, v, r, u, w, bias, call, with_lse)  # type: ignore[misc]
    return out, lse if with_lse else None
