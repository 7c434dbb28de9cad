"""Relative attention as in the paper's equation: explicit distances, one term at a time, no optimisation.

Shapes: B batch, H heads, L queries, K keys, C columns of positions, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.ops.masks import Ahead, Blocks, Causal, Mask, distances


class Attended(NamedTuple):
    out: Tensor
    """(B, H, L, D)"""
    lse: Tensor
    """(B, H, L): log-sum-exp of the scaled, visible scores"""
    probabilities: Tensor
    """(B, H, L, K), before dropout"""
    terms: dict[str, Tensor]
    """The paper's (a) q.k, (b) q.r, (c) u.k and (d) w.r (with a learned bias per distance), scaled, (B, H, L, K)"""
    visible: Tensor
    """(B, 1, L, K): which keys a query may see"""


def relative_attention_reference(
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
) -> Attended:
    """softmax over visible j of ((q_i + u).k_j + (q_i + w).r_dist + bias_dist) / sqrt(D), times v.

    r (H, C, D) and bias (H, C) are in descending distance; the last column is distance -ahead.
    lengths (B,): number of valid keys of a row, counted from the right.
    """
    num_queries, num_keys = q.shape[2], k.shape[2]
    distance = distances(num_queries, num_keys, offset, q.device)
    visible = mask.visible(num_queries, num_keys, offset, q.device)
    visible = visible.expand(q.shape[0], -1, -1)[:, None]
    if lengths is not None:
        index = torch.arange(num_keys, device=q.device)
        visible = visible & (index >= num_keys - lengths[:, None])[:, None, None, :]

    keys = mask.row_keys(num_queries, num_keys if lengths is None else lengths) if isinstance(mask, Blocks) else None
    terms = _score_terms(q, k, r, u, w, bias, _Pairs(distance, ahead, mask.ahead, keys))
    scale = q.shape[-1] ** -0.5
    terms = {name: term * scale for name, term in terms.items()}
    scores = torch.stack(list(terms.values())).sum(0).masked_fill(~visible, float("-inf"))
    probabilities = torch.softmax(scores, -1)
    dropped = torch.nn.functional.dropout(probabilities, dropout)
    return Attended(dropped @ v, torch.logsumexp(scores, -1), probabilities, terms, visible)


class _Pairs(NamedTuple):
    """Positions of queries and keys."""

    distance: Tensor
    """(L, K)"""
    ahead: int
    """Columns of negative distances"""
    policy: Ahead
    keys: Tensor | None
    """(B,) keys of each row; None if all are valid"""

    def scores(self, term: Tensor) -> Tensor:
        """(B, H, L, C) scores of queries and columns -> (B, H, L, K) scores of queries and keys, by their distance."""
        zero = term.shape[-1] - 1 - self.ahead
        near = self._take(term, zero - self.distance)
        if self.policy == "signed":
            return near
        beyond = self._wrapped(term[..., : zero + 1]) if self.policy == "wrap" else torch.zeros_like(near)
        return torch.where(self.distance >= 0, near, beyond)

    def _wrapped(self, term: Tensor) -> Tensor:
        """The scores that the published shift leaves ahead of a query: zero one step ahead, then the next query's
        scores of the row's farthest distances."""
        following = torch.nn.functional.pad(term, (0, 0, 0, 1))[..., 1:, :]
        farthest = 0 if self.keys is None else (term.shape[-1] - self.keys)[:, None, None, None]
        taken = self._take(following, farthest - self.distance - 2)
        return torch.where(self.distance == -1, torch.zeros_like(taken), taken)

    def _take(self, term: Tensor, column: Tensor) -> Tensor:
        return term.gather(-1, column.clamp(0, term.shape[-1] - 1).expand(*term.shape[:3], -1))


def _score_terms(
    q: Tensor,
    k: Tensor,
    r: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    bias: Tensor | None,
    pairs: _Pairs,
) -> dict[str, Tensor]:
    shape = (*q.shape[:3], k.shape[2])
    terms = {"a": q @ k.transpose(-1, -2)}
    if u is not None:
        terms["c"] = (u[:, None, :] @ k.transpose(-1, -2)).expand(shape)
    if r is not None:
        by_column = {"b": q @ r.transpose(-1, -2)}
        if w is not None:
            by_column["d"] = (w[:, None, :] @ r.transpose(-1, -2)).expand(*q.shape[:3], -1)
        terms |= {name: pairs.scores(term) for name, term in by_column.items()}
    if bias is not None:
        per_query = bias[:, None, :].expand(*q.shape[:3], -1)
        terms["d"] = terms.get("d", 0) + pairs.scores(per_query)
    return terms
