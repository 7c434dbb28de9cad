"""Relative attention as the paper writes it: explicit distances, one term at a time, nothing clever.

Shapes: B batch, H heads, L queries, K keys, C columns of positions, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.ops.masks import Causal, Mask, distances


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
    mask: Mask = Causal(),
    lengths: Tensor | None = None,
    dropout: float = 0.0,
) -> Attended:
    """softmax over visible j of ((q_i + u).k_j + (q_i + w).r_dist + bias_dist) / sqrt(D), times v.

    r (H, C, D) and bias (H, C) are in descending distance, the last column is distance 0.
    lengths (B,): how many keys of a row are valid, counted from the right.
    """
    num_queries, num_keys = q.shape[2], k.shape[2]
    distance = distances(num_queries, num_keys, offset, q.device)
    visible = mask.visible(distance).expand(q.shape[0], 1, -1, -1)
    if lengths is not None:
        index = torch.arange(num_keys, device=q.device)
        visible = visible & (index >= num_keys - lengths[:, None])[:, None, None, :]

    terms = _score_terms(q, k, r, u, w, bias, distance)
    scale = q.shape[-1] ** -0.5
    terms = {name: term * scale for name, term in terms.items()}
    scores = torch.stack(list(terms.values())).sum(0).masked_fill(~visible, float("-inf"))
    probabilities = torch.softmax(scores, -1)
    dropped = torch.nn.functional.dropout(probabilities, dropout)
    return Attended(dropped @ v, torch.logsumexp(scores, -1), probabilities, terms)


def _score_terms(
    q: Tensor, k: Tensor, r: Tensor | None, u: Tensor | None, w: Tensor | None, bias: Tensor | None, distance: Tensor
) -> dict[str, Tensor]:
    shape = (*q.shape[:3], k.shape[2])
    terms = {"a": q @ k.transpose(-1, -2)}
    if u is not None:
        terms["c"] = (u[:, None, :] @ k.transpose(-1, -2)).expand(shape)
    if r is not None:
        column = (r.shape[1] - 1 - distance).clamp(0, r.shape[1] - 1)
        by_pair = r[:, column]  # (H, L, K, D)
        terms["b"] = torch.einsum("bhid,hijd->bhij", q, by_pair)
        if w is not None:
            terms["d"] = torch.einsum("hd,hijd->hij", w, by_pair).expand(shape)
    if bias is not None:
        column = (bias.shape[1] - 1 - distance).clamp(0, bias.shape[1] - 1)
        terms["d"] = terms.get("d", 0) + bias[:, column].expand(shape)
    return terms
