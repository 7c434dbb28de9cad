"""Relative attention of one query that sees every key, for decoding on a CPU: no masks and no shifts.

Shapes: B batch, H heads, K keys, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.ops.masks import Causal, Mask


def is_single(q: Tensor, k: Tensor, offset: int, mask: Mask) -> bool:
    """Whether there is one query, at the last key, that sees all keys."""
    num_keys = k.shape[2]
    if q.shape[2] != 1 or offset != num_keys - 1 or not isinstance(mask, Causal):
        return False
    return mask.window is None or mask.window >= num_keys


def attend_single(q: Tensor, k: Tensor, v: Tensor, r: Tensor | None, u: Tensor | None, w: Tensor | None) -> Tensor:
    """Contexts (B, H, 1, D); r (H, K, D) in descending distance, the last 0."""
    scale = q.shape[-1] ** -0.5
    content = (q if u is None else q + u[:, None]).flatten(0, 1)  # (B * H, 1, D)
    keys = k.flatten(0, 1).transpose(1, 2)
    if r is None:
        scores = torch.bmm(content * scale, keys)
    else:
        position = (q if w is None else q + w[:, None])[:, :, 0].transpose(0, 1)  # (H, B, D)
        placed = torch.bmm(position, r.transpose(1, 2)).transpose(0, 1).reshape(-1, 1, k.shape[2])
        scores = torch.baddbmm(placed, content, keys, beta=scale, alpha=scale)
    shares = torch.softmax(scores, -1, out=scores)
    return torch.bmm(shares, v.flatten(0, 1)).view(q.shape)
