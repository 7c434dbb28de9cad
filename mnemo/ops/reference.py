"""Relative attention as the paper writes it: explicit distances, one term at a time, nothing clever.

Shapes: B batch, H heads, L queries, K keys, C columns of positions, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.ops.masks import Ahead, Causal, Mask, distances


class Attended(NamedTuple):
    out: Tensor
    """(B, H, L, D)"""
    lse: Tensor
    """(B, H, L): log-sum-exp of the scaled, visible scores"""
    probabilities: Tensor
    """(B, H, L, K), before dropout"""
    terms: dict[str, Tensor]
    """The paper's (a) q.k, (b) q.r, (c) u.k and (d) w.r (with a learned bias per distance), scaled, (B, H, L, K)"""


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
    lengths (B,): how many keys of a row are valid, counted from the right.
    """
    num_queries, num_keys = q.shape[2], k.shape[2]
    distance = distances(num_queries, num_keys, offset, q.device)
    visible = mask.visible(num_queries, num_keys, offset, q.device)
    visible = visible.expand(q.shape[0], -1, -1)[:, None]
    if lengths is not None:
        index = torch.arange(num_keys, device=q.device)
        visible = visible & (index >= num_keys - lengths[:, None])[:, None, None, :]

    terms = _score_terms(q, k, r, u, w, bias, distance, ahead, mask.ahead)
    scale = q.shape[-1] ** -0.5
    terms = {name: term * scale for name, term in terms.items()}
    scores = torch.stack(list(terms.values())).sum(0).masked_fill(~visible, float("-inf"))
    probabilities = torch.softmax(scores, -1)
    dropped = torch.nn.functional.dropout(probabilities, dropout)
    return Attended(dropped @ v, torch.logsumexp(scores, -1), probabilities, terms)


def _score_terms(
    q: Tensor,
    k: Tensor,
    r: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    bias: Tensor | None,
    distance: Tensor,
    ahead: int,
    policy: Ahead,
) -> dict[str, Tensor]:
    shape = (*q.shape[:3], k.shape[2])
    terms = {"a": q @ k.transpose(-1, -2)}
    if u is not None:
        terms["c"] = (u[:, None, :] @ k.transpose(-1, -2)).expand(shape)
    if r is not None:
        by_column = {"b": q @ r.transpose(-1, -2)}
        if w is not None:
            by_column["d"] = (w[:, None, :] @ r.transpose(-1, -2)).expand(*q.shape[:3], -1)
        terms |= {name: _by_pair(term, distance, ahead, policy) for name, term in by_column.items()}
    if bias is not None:
        per_query = bias[:, None, :].expand(*q.shape[:3], -1)
        terms["d"] = terms.get("d", 0) + _by_pair(per_query, distance, ahead, policy)
    return terms


def _by_pair(term: Tensor, distance: Tensor, ahead: int, policy: Ahead) -> Tensor:
    """(B, H, L, C) scores of queries and columns -> (B, H, L, K) scores of queries and keys, by their distance."""
    column = (term.shape[-1] - 1 - ahead - distance).clamp(0, term.shape[-1] - 1)
    pairs = term.gather(-1, column.expand(*term.shape[:2], -1, -1))
    if policy == "signed":
        return pairs
    beyond = _wrapped(term[..., : term.shape[-1] - ahead], distance) if policy == "wrap" else torch.zeros_like(pairs)
    return torch.where(distance >= 0, pairs, beyond)


def _wrapped(term: Tensor, distance: Tensor) -> Tensor:
    """What the published shift leaves ahead of a query: nothing one step ahead, then the next query's far columns."""
    following = torch.nn.functional.pad(term, (0, 0, 0, 1))[..., 1:, :]
    column = (-distance - 2).clamp(0, term.shape[-1] - 1)
    taken = following.gather(-1, column.expand(*term.shape[:2], -1, -1))
    return torch.where(distance == -1, torch.zeros_like(taken), taken)
