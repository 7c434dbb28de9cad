"""The hot operations. `reference` is the equation, `eager` the fast plain-PyTorch path."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from mnemo.ops.eager import relative_attention_eager
from mnemo.ops.masks import Causal, Mask
from mnemo.ops.reference import Attended, relative_attention_reference

Implementation = Literal["auto", "reference", "eager"]

__all__ = ["Attended", "Causal", "Implementation", "Mask", "relative_attention", "relative_attention_reference"]


def relative_attention(
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
    with_lse: bool = False,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Attention with relative positions: `(out, lse)`; see `relative_attention_reference` for the equation.

    q (B, H, L, D); k, v (B, H, K, D); r (H, C, D) in descending distance, C >= offset + L; u, w (H, D); bias (H, C).
    Query i stands at key `offset + i`. `lengths` (B,) counts a row's valid keys from the right.
    """
    fits_eager = offset == k.shape[2] - q.shape[2] and isinstance(mask, Causal)
    if impl == "reference" or not fits_eager:
        attended = relative_attention_reference(
            q, k, v, r, u, w, bias=bias, offset=offset, mask=mask, lengths=lengths, dropout=dropout
        )
        return attended.out, attended.lse
    return relative_attention_eager(
        q, k, v, r, u, w, bias=bias, mask=mask, lengths=lengths, dropout=dropout, with_lse=with_lse
    )
