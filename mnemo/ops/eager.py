"""Relative attention in plain PyTorch, fast: the CPU's path and every device's fallback.

Three ideas against the published formulation: queries go in blocks, so that keys no query of a block can see are
never touched; the position scores are read through a skewed view instead of being copied into place; forward and
backward are written out by hand, so that one buffer of scores lives at a time.

Shapes: N = B * H, L queries, K keys, D head size. Within a block r has exactly K rows, distances K-1 ... 0, and the
last query stands on the last key, so score (i, j) reads column j + L - 1 - i of the unskewed scores.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.ops.masks import Causal

QUERY_BLOCK = 128


class _Block(NamedTuple):
    queries: slice
    keys: slice


def _blocks(num_queries: int, offset: int, window: int | None) -> list[_Block]:
    blocks = []
    for begin in range(0, num_queries, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, num_queries)
        first = 0 if window is None else max(0, offset + begin - window + 1)
        blocks.append(_Block(slice(begin, end), slice(first, offset + end)))
    return blocks


def _skewed(scores: Tensor) -> Tensor:
    """The view whose (i, j) is `scores`' (i, j + L - 1 - i); what lies beyond the causal edge is garbage."""
    rows, columns = scores.shape[-2:]
    return scores.as_strided(
        scores.shape, (rows * columns, columns - 1, 1), scores.storage_offset() + rows - 1
    )  # fmt: skip


def _unskew(gradient: Tensor) -> Tensor:
    """The adjoint of `_skewed` for a gradient that is zero beyond the causal edge."""
    rows, columns = gradient.shape[-2:]
    out = gradient.new_empty(gradient.shape)
    flat = out.view(gradient.shape[0], rows * columns)
    flat[:, : rows - 1] = 0
    middle = flat[:, rows - 1 : rows - 1 + rows * (columns - 1)]
    middle.view(gradient.shape[0], rows, columns - 1).copy_(gradient[..., : columns - 1])
    flat[:, -1] = gradient[:, -1, -1]
    return out


def _mask_scores_(scores: Tensor, window: int | None, lengths: Tensor | None) -> None:
    """Hide future keys, keys past the window and invalid keys. scores (B, H, L, K)."""
    rows, columns = scores.shape[-2:]
    edge = torch.ones(rows, rows, dtype=torch.bool, device=scores.device)
    if rows > 1:
        scores[..., columns - rows :].masked_fill_(edge.triu(1), float("-inf"))
    if window is not None and columns > window:
        # the last query sees keys from columns - window on; each earlier query one more to the left
        too_far = torch.arange(columns, device=scores.device) <= (
            torch.arange(rows, device=scores.device)[:, None] + columns - rows - window
        )
        scores.masked_fill_(too_far, float("-inf"))
    if lengths is not None:
        invalid = torch.arange(columns, device=scores.device) < columns - lengths[:, None]
        scores.masked_fill_(invalid[:, None, None, :], float("-inf"))


def _scores(q: Tensor, k: Tensor, r: Tensor | None, u: Tensor | None, w: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scaled scores of one block, unmasked. q (B, H, L, D), k (B, H, K, D) -> (B, H, L, K)."""
    batch, heads, rows, size = q.shape
    columns, scale = k.shape[2], size**-0.5
    content = (q if u is None else q + u[:, None, :]).reshape(-1, rows, size)
    keys = k.reshape(-1, columns, size).transpose(1, 2)
    if r is None and bias is None:
        return torch.bmm(content, keys).mul_(scale).view(batch, heads, rows, columns)
    if r is not None:
        position = (q if w is None else q + w[:, None, :]) @ r.transpose(-1, -2)
        if bias is not None:
            position += bias[:, None, :]
    else:
        assert bias is not None
        position = bias[:, None, :].expand(batch, heads, rows, columns)
    skewed = _skewed(position.reshape(-1, rows, columns))
    return torch.baddbmm(skewed, content, keys, beta=scale, alpha=scale).view(batch, heads, rows, columns)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, r, u, w, bias, offset, window, lengths, dropout, with_lse):
        blocks = _blocks(q.shape[2], offset, window)
        outs, lses, saved = [], [], []
        for block in blocks:
            columns = block.keys.stop - block.keys.start
            scores = _scores(q[:, :, block.queries], k[:, :, block.keys], _tail(r, columns), u, w, _tail(bias, columns))
            _mask_scores_(scores, window, None if lengths is None else lengths - (k.shape[2] - block.keys.stop))
            if with_lse:
                lses.append(torch.logsumexp(scores, -1))
            probabilities = torch.softmax(scores, -1)
            keep = None
            if dropout > 0:
                keep = torch.empty_like(probabilities).bernoulli_(1 - dropout).div_(1 - dropout)
            outs.append((probabilities if keep is None else probabilities * keep) @ v[:, :, block.keys])
            saved += [probabilities, keep]
        ctx.save_for_backward(q, k, v, r, u, w, bias, *saved)
        ctx.blocks = blocks
        lse = torch.cat(lses, 2) if with_lse else q.new_empty(0)
        return torch.cat(outs, 2), lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        q, k, v, r, u, w, bias, *saved = ctx.saved_tensors
        grads = _Gradients(q, k, v, r, u, w, bias)
        for number, block in enumerate(ctx.blocks):
            probabilities, keep = saved[2 * number], saved[2 * number + 1]
            grads.add(block, probabilities, keep, d_out, d_lse if d_lse is not None and d_lse.numel() else None)
        return *grads.result(), None, None, None, None, None


class _Gradients:
    """Sums the gradients of one call block by block."""

    def __init__(self, q, k, v, r, u, w, bias) -> None:
        self.q, self.k, self.v, self.r, self.u, self.w, self.bias = q, k, v, r, u, w, bias
        self.dq_content: list[Tensor] = []
        self.dq_position: list[Tensor] = []
        self.dk, self.dv = torch.zeros_like(k), torch.zeros_like(v)
        self.dr = None if r is None else torch.zeros_like(r)
        self.dbias = None if bias is None else torch.zeros_like(bias)

    def add(self, block: _Block, probabilities: Tensor, keep: Tensor | None, d_out: Tensor, d_lse: Tensor | None):
        rows, keys = block.queries, block.keys
        d_rows = d_out[:, :, rows]
        dropped = probabilities if keep is None else probabilities * keep
        self.dv[:, :, keys] += dropped.transpose(-1, -2) @ d_rows
        d_scores = d_rows @ self.v[:, :, keys].transpose(-1, -2)
        if keep is not None:
            d_scores.mul_(keep)
        delta = (d_scores * probabilities).sum(-1, keepdim=True)
        if d_lse is not None:
            delta = delta - d_lse[:, :, rows, None]
        d_scores.sub_(delta).mul_(probabilities).mul_(self.q.shape[-1] ** -0.5)
        self._content(block, d_scores)
        self._position(block, d_scores)

    def _content(self, block: _Block, d_scores: Tensor) -> None:
        q = self.q[:, :, block.queries]
        self.dq_content.append(d_scores @ self.k[:, :, block.keys])
        content = q if self.u is None else q + self.u[:, None, :]
        self.dk[:, :, block.keys] += d_scores.transpose(-1, -2) @ content

    def _position(self, block: _Block, d_scores: Tensor) -> None:
        if self.r is None and self.bias is None:
            return
        rows, columns = d_scores.shape[-2:]
        unskewed = _unskew(d_scores.reshape(-1, rows, columns)).view(d_scores.shape)
        if self.bias is not None:
            _tail(self.dbias, columns).add_(unskewed.sum((0, 2)))
        if self.r is None:
            return
        q = self.q[:, :, block.queries]
        self.dq_position.append(unskewed @ _tail(self.r, columns))
        position = q if self.w is None else q + self.w[:, None, :]
        by_head = unskewed.transpose(0, 1).reshape(q.shape[1], -1, columns)  # (H, B * L, K)
        queries = position.transpose(0, 1).reshape(q.shape[1], -1, q.shape[-1])
        _tail(self.dr, columns).add_(by_head.transpose(1, 2) @ queries)

    def result(self):
        dq = content = torch.cat(self.dq_content, 2)
        position = torch.cat(self.dq_position, 2) if self.dq_position else None
        if position is not None:
            dq = content + position
        du = None if self.u is None else content.sum((0, 2))
        dw = None if self.w is None or position is None else position.sum((0, 2))
        return dq, self.dk, self.dv, self.dr, du, dw, self.dbias


def _tail(table: Tensor | None, columns: int) -> Tensor:
    return table if table is None else table[:, table.shape[1] - columns :]  # type: ignore[return-value]


def relative_attention_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None = None,
    u: Tensor | None = None,
    w: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    mask: Causal = Causal(),
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As the reference, for causal masks where the last query stands on the last key."""
    offset = k.shape[2] - q.shape[2]
    if lengths is not None and lengths.device.type == "cpu" and bool((lengths >= k.shape[2]).all()):
        lengths = None
    out, lse = _Attention.apply(q, k, v, r, u, w, bias, offset, mask.window, lengths, dropout, with_lse)  # type: ignore[misc]
    return out, lse if with_lse else None
