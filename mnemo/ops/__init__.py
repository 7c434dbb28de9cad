"""The hot operations. `reference` is the equation, `eager` the fast plain-PyTorch path, `fused` the GPU's kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from mnemo.ops.cpu.eager import relative_attention_eager
from mnemo.ops.dropout import keep_mask
from mnemo.ops.masks import Ahead, Blocks, Causal, KeyLimit, Mask, as_text
from mnemo.ops.reference import Attended, relative_attention_reference

AUTOCAST_DEVICES = frozenset(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))
"""Asked once: compilers cannot ask."""
HAS_TRITON = find_spec("triton") is not None
Implementation = Literal["auto", "reference", "eager", "fused"]
IMPLEMENTATIONS = get_args(Implementation)

__all__ = [
    "AUTOCAST_DEVICES",
    "Ahead",
    "Attended",
    "Blocks",
    "Causal",
    "Implementation",
    "KeyLimit",
    "Mask",
    "as_text",
    "call_objection",
    "keep_mask",
    "objection",
    "relative_attention",
    "relative_attention_reference",
    "using",
]

_chosen: Implementation = "auto"


@contextmanager
def using(impl: Implementation) -> Iterator[None]:
    """Within this context, calls that leave the implementation open take this one: to compare whole models."""
    global _chosen
    before, _chosen = _chosen, impl
    try:
        yield
    finally:
        _chosen = before


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
    ahead: int = 0,
    mask: Mask = Causal(),
    lengths: Tensor | None = None,
    dropout: float = 0.0,
    with_lse: bool = False,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Attention with relative positions: `(out, lse)`; see `relative_attention_reference` for the equation.

    q (B, H, L, D); k, v (B, H, K, D); u, w (H, D). r (H, C, D) and bias (H, C) are in descending distance: the last
    column is distance -ahead, the first at least offset + L - 1. Query i stands at key `offset + i`.
    `lengths` (B,) counts a row's valid keys from the right.
    """
    impl = _chosen if impl == "auto" else impl
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl '{impl}' is none of {', '.join(IMPLEMENTATIONS)}")
    see = {"bias": bias, "offset": offset, "ahead": ahead, "mask": mask, "lengths": lengths, "dropout": dropout}
    fast = impl in ("auto", "fused") and _is_fused(impl, q, r, bias, mask)
    if impl == "reference" or mask.ahead != "signed":
        attended = relative_attention_reference(q, k, v, r, u, w, **see)
        return attended.out, attended.lse
    # Backward passes are written for operands of one type, which autocast would mix.
    with _as_they_are(q.device.type):
        if fast:
            from mnemo.ops.cuda.dispatch import fused_attention

            out, lse = fused_attention(q, k, v, r, u, w, **see)
            return out, lse if with_lse else None
        return relative_attention_eager(q, k, v, r, u, w, **see, with_lse=with_lse)


def _as_they_are(kind: str) -> AbstractContextManager[object]:
    """No autocast on this kind of device; entering that takes as long as a small product, so not without need."""
    if kind not in AUTOCAST_DEVICES or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _is_fused(impl: Implementation, q: Tensor, r: Tensor | None, bias: Tensor | None, mask: Mask) -> bool:
    """Whether kernels take this call. Where they were asked for, or could be expected, one warning says why not."""
    refused = call_objection(r is not None, bias is not None, mask.ahead)
    if refused is None:
        refused = (_interpreter_objection if impl == "fused" else objection)(q.device, q.dtype, q.shape[-1])
    if refused is not None and (impl == "fused" or q.is_cuda):
        _tell(refused)
    return refused is None


def _interpreter_objection(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """As `objection`; but in Triton's interpreter, which tests use, kernels run on every device."""
    if not HAS_TRITON or os.environ.get("TRITON_INTERPRET") != "1":
        return objection(device, dtype, head_dim)
    from mnemo.ops.cuda.dispatch import heads_objection

    return heads_objection(dtype, head_dim)


_told: set[str] = set()


def _tell(refused: str) -> None:
    if torch.compiler.is_compiling() or refused in _told:
        return
    _told.add(refused)
    warnings.warn(f"attention runs in plain PyTorch, which is slower: {refused}", stacklevel=4)


def call_objection(has_positions: bool, has_bias: bool, ahead: Ahead) -> str | None:
    """Why no kernel takes calls with such tables and masks, whatever their device, if none does."""
    if has_bias and not has_positions:
        return "a bias alone has no kernel"
    if ahead != "signed":
        return f"keys ahead positioned by '{ahead}' have no kernel"
    return None


def objection(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why attention does not run in fused kernels, if it does not; the first time it is asked, it tries them."""
    if device.type != "cuda":
        return f"fused kernels need a CUDA device, not {device.type}"
    if not HAS_TRITON:
        return "Triton is not installed"
    from mnemo.ops.cuda.dispatch import objection as of_kernels

    return of_kernels(device, dtype, head_dim)
