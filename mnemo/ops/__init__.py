"""Relative attention: `reference` is the equation, `eager` fast plain PyTorch, `fused` the kernels of a GPU."""

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
from mnemo.ops.gates import apply_gate
from mnemo.ops.masks import Ahead, Blocks, Causal, KeyLimit, Mask, as_text
from mnemo.ops.reference import Attended, relative_attention_reference

AUTOCAST_DEVICES = frozenset(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))
"""Determined once: compiled code cannot call the function."""
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
    "call_obstacle",
    "gate_obstacle",
    "gates_inside",
    "keep_mask",
    "kernel_obstacle",
    "relative_attention",
    "relative_attention_reference",
    "using",
]

_chosen: Implementation = "auto"


@contextmanager
def using(impl: Implementation) -> Iterator[None]:
    """Within this context, calls with impl="auto" use this implementation: to compare whole models."""
    global _chosen
    before, _chosen = _chosen, impl
    try:
        yield
    finally:
        _chosen = before


def chosen() -> Implementation:
    """The implementation that calls with impl="auto" use."""
    return _chosen


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
    num_calls: int = 1,
    gate: Tensor | None = None,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Attention with relative positions: `(out, lse)`; see `relative_attention_reference` for the equation.

    q (B, H, L, D); k, v (B, H, K, D); u, w (H, D). r (H, C, D) and bias (H, C) are in descending distance: the last
    column is distance -ahead, the first at least offset + L - 1. Query i is at the position of key `offset + i`.
    `lengths` (B,): number of valid keys of a row, counted from the right. lse (B, H, L), the logarithm of the softmax's
    sum, may be None unless `with_lse` is set. `num_calls`: layers that make such a call, which keep scores at the same
    time. `gate` (B, L, H): outputs are multiplied by its sigmoid. `impl`: "auto" takes fused kernels where they run.
    """
    impl = _chosen if impl == "auto" else impl
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl '{impl}' is none of {', '.join(IMPLEMENTATIONS)}")
    see = {"bias": bias, "offset": offset, "ahead": ahead, "mask": mask, "lengths": lengths, "dropout": dropout}
    fast = impl in ("auto", "fused") and _is_fused(impl, q, r, bias, mask)
    if impl == "reference" or mask.ahead != "signed":
        attended = relative_attention_reference(q, k, v, r, u, w, **see)
        return attended.out if gate is None else apply_gate(attended.out, gate), attended.lse
    # Backward passes are written for operands of one type, which autocast would mix. Compiled kernels run without it
    # anyway, and torch's cache takes no graph that changes autocast.
    with nullcontext() if fast and torch.compiler.is_compiling() else _without_autocast(q.device.type):
        if fast:
            from mnemo.ops.cuda.dispatch import fused_attention

            out, lse = fused_attention(q, k, v, r, u, w, **see, num_calls=num_calls, gate=gate)
            return out, lse if with_lse else None
        out, lse = relative_attention_eager(q, k, v, r, u, w, **see, with_lse=with_lse)
        return out if gate is None else apply_gate(out, gate), lse


def gates_inside(q: Tensor, r: Tensor | None, bias: Tensor | None, mask: Mask) -> bool:
    """Whether the kernels of such a call apply gates, which saves passes over its outputs and their gradients."""
    if _chosen not in ("auto", "fused") or not _is_fused(_chosen, q, r, bias, mask):
        return False
    return _chosen == "fused" or gate_obstacle(q.device, q.dtype, q.shape[-1]) is None


def gate_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why no kernel applies gates; None if one does. The first call for a device tests it."""
    refused = kernel_obstacle(device, dtype, head_dim, spans=False)
    if refused is not None:
        return refused
    from mnemo.ops.cuda.dispatch import GATE_TEST, head_size

    return GATE_TEST.obstacle(device, dtype, head_size(head_dim))


def _without_autocast(kind: str) -> AbstractContextManager[object]:
    """Autocast off on this kind of device, if it is on: entering the context takes as long as a small product."""
    if kind not in AUTOCAST_DEVICES or not (torch.compiler.is_compiling() or torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _is_fused(impl: Implementation, q: Tensor, r: Tensor | None, bias: Tensor | None, mask: Mask) -> bool:
    """Whether kernels support this call. If not, one warning tells why, on a GPU or if they were requested."""
    refused = call_obstacle(r is not None, bias is not None, mask.ahead)
    if refused is None:
        obstacle = _interpreter_obstacle if impl == "fused" else kernel_obstacle
        refused = obstacle(q.device, q.dtype, q.shape[-1], not isinstance(mask, Causal))
    if refused is not None and (impl == "fused" or q.is_cuda):
        _warn_once(refused)
    return refused is None


def _interpreter_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int, spans: bool) -> str | None:
    """As `kernel_obstacle`, except that kernels run on every device in Triton's interpreter, which tests use."""
    if not HAS_TRITON or os.environ.get("TRITON_INTERPRET") != "1":
        return kernel_obstacle(device, dtype, head_dim, spans)
    from mnemo.ops.cuda.dispatch import heads_obstacle

    return heads_obstacle(dtype, head_dim)


_warned: set[str] = set()


def _warn_once(refused: str) -> None:
    if torch.compiler.is_compiling() or refused in _warned:
        return
    _warned.add(refused)
    warnings.warn(f"attention runs in plain PyTorch, which is slower: {refused}", stacklevel=4)


def call_obstacle(has_positions: bool, has_bias: bool, ahead: Ahead) -> str | None:
    """Why no kernel supports such tables and masks on any device; None if one does."""
    if has_bias and not has_positions:
        return "a bias alone has no kernel"
    if ahead != "signed":
        return f"keys ahead positioned by '{ahead}' have no kernel"
    return None


def kernel_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int, spans: bool = True) -> str | None:
    """Why attention does not run in fused kernels; None if it does. The first call for a device tests them.

    `spans`: whether there are masks other than causal ones, which have kernels of their own.
    """
    if device.type != "cuda":
        return f"fused kernels need a CUDA device, not {device.type}"
    if not HAS_TRITON:
        return "Triton is not installed"
    from mnemo.ops.cuda.dispatch import kernel_obstacle as tested_obstacle

    return tested_obstacle(device, dtype, head_dim, spans)
