"""Which calls the kernels support, and how a mask is passed to them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.errors import one_line
from mnemo.ops.cpu.eager import relative_attention_eager
from mnemo.ops.cuda.operator import draw_seed
from mnemo.ops.cuda.operator import relative_attention as operator
from mnemo.ops.cuda.self_test import SelfTest, note_passed, passed_before
from mnemo.ops.gates import apply_gate
from mnemo.ops.masks import Causal, KeyLimit, Mask

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_HEAD = 128
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 1e-4}
"""Relative tolerance of the comparison with the plain path; errors of a compiler are far larger"""


def head_size(size: int) -> int:
    """The power of 2 to which heads of a size are padded with zeros."""
    return max(16, 1 << (size - 1).bit_length())


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    *,
    bias: Tensor | None,
    offset: int,
    ahead: int,
    mask: Mask,
    lengths: Tensor | None,
    dropout: float,
    num_calls: int = 1,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    root, size = q.shape[-1] ** -0.5, q.shape[-1]
    q, k, v, r, u, w = (_widened(x) for x in (q, k, v, r, u, w))  # type: ignore[assignment]
    begin, low, high = _bounds(mask, lengths, q.shape[2], k.shape[2], offset, q.device)
    window = (mask.window or 0) if isinstance(mask, Causal) else 0
    seed = draw_seed(q.detach(), k.detach()) if dropout else None
    numbers = (offset, ahead, window, float(dropout), root, num_calls)
    keep = torch.is_grad_enabled()
    # The largest number of keys that a query sees, known to the device only: kernels skip the keys after it.
    limit = mask.limits.max().int().view(1) if isinstance(mask, KeyLimit) else None
    out, lse, _ = operator(q, k, v, r, u, w, bias, gate, begin, low, high, limit, seed, *numbers, keep)
    return out[..., :size], lse


def _widened(x: Tensor | None) -> Tensor | None:
    if x is None or (size := head_size(x.shape[-1])) == x.shape[-1]:
        return x
    return F.pad(x, (0, size - x.shape[-1]))


def _bounds(
    mask: Mask, lengths: Tensor | None, num_queries: int, num_keys: int, offset: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The first key of every row; or the keys of every query, [low, high)."""
    first = None if lengths is None else (num_keys - lengths).clamp(min=0)
    if isinstance(mask, Causal):
        return None if first is None else first.int(), None, None
    low, high = mask.span(num_queries, num_keys, offset, device)
    low = low if first is None else torch.maximum(low, first[:, None])
    return None, low.int().contiguous(), high.int().contiguous()


def kernel_obstacle(device: torch.device, dtype: torch.dtype, size: int, spans: bool = True) -> str | None:
    """Why the kernels do not support heads of a size and type on a device; None if they do.

    `spans`: whether queries see any span of keys; causal masks have kernels of their own.
    """
    refused = heads_obstacle(dtype, size)
    if refused is not None:
        return refused
    if torch.compiler.is_compiling():
        return OFF  # no test can run while compiling: it has run before
    return device_obstacle(device, dtype, size, spans)


def heads_obstacle(dtype: torch.dtype, size: int) -> str | None:
    """Why no kernel exists for heads of a size and type; None if one does."""
    if dtype not in DTYPES:
        return f"no kernel computes in {str(dtype).removeprefix('torch.')}"
    if size > LARGEST_HEAD:
        return f"heads of {size} are wider than the kernels' {LARGEST_HEAD}"
    return None


OFF: str | None = None
"""Why the kernels are not used on this machine; None if they are"""
_tested: set[tuple[int, torch.dtype, int, str]] = set()


def device_obstacle(device: torch.device, dtype: torch.dtype, size: int, spans: bool = True) -> str | None:
    """Why the kernels do not run on a device; None if they do. The first call compares them with the plain path.

    Kernels for spans of keys are tested only if they are needed, because compiling them takes seconds.
    """
    for kind in ("causal", "spans") if spans else ("causal",):
        found = _kind_obstacle(device, dtype, size, kind)
        if found is not None:
            return found
    return None


def _kind_obstacle(device: torch.device, dtype: torch.dtype, size: int, kind: str) -> str | None:
    global OFF
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
        return "this GPU has no bf16"
    key = (device.index or 0, dtype, head_size(size), kind)
    if OFF is None and key not in _tested and not torch.cuda.is_current_stream_capturing():
        _tested.add(key)
        test = (f"attention, {kind}", device, dtype, head_size(size))
        problem = None if passed_before(*test) else failure(*test[1:], kind)
        if problem is None:
            note_passed(*test)
        else:
            OFF = f"the kernels fail their test on {device}, {dtype}: {problem}"
            warnings.warn(f"fused attention is off, going on slower: {OFF}", stacklevel=2)
    return OFF


def failure(device: torch.device, dtype: torch.dtype, size: int, kind: str) -> str | None:
    """The failure of a comparison with the plain path, outputs and all gradients; None if they agree."""
    try:
        worst = max(_errors(device, dtype, size, kind).values())
    except Exception as error:  # any compiler error: the plain path is used instead
        return f"{type(error).__name__}: {one_line(error)}"
    return None if worst <= TOLERANCE[dtype] else f"error {worst:.1e}"


def _gate_failure(device: torch.device, dtype: torch.dtype, size: int) -> str | None:
    worst = max(_errors(device, dtype, size, "causal", gated=True).values())
    return None if worst <= TOLERANCE[dtype] else f"error {worst:.1e}"


GATE_TEST = SelfTest("gates inside of attention", _gate_failure)


def _errors(device: torch.device, dtype: torch.dtype, size: int, kind: str, gated: bool = False) -> dict[str, float]:
    """Errors for causal rows that begin at some key, or for rows with a span of keys, which have separate kernels."""
    generator = torch.Generator().manual_seed(0)
    batch, heads, queries, slots = 2, 2, 72, 88
    keys = queries + slots
    shapes = {
        "q": (batch, heads, queries, size),
        "k": (batch, heads, keys, size),
        "v": (batch, heads, keys, size),
        "r": (heads, keys, size),
        "u": (heads, size),
        "w": (heads, size),
    }
    if gated:
        shapes["gate"] = (batch, queries, heads)
    exact = {name: torch.randn(shape, generator=generator).to(device, dtype) for name, shape in shapes.items()}
    counts = torch.tensor([keys, keys - 30], device=device)
    sees = {"mask": Causal(), "lengths": counts} if kind == "causal" else {"mask": KeyLimit(counts), "lengths": None}
    see: dict[str, Any] = {"bias": None, "offset": slots, "ahead": 0, **sees}
    results = []
    for number_type, function in ((dtype, fused_attention), (torch.float32, relative_attention_eager)):
        inputs = {name: x.to(number_type).detach().requires_grad_() for name, x in exact.items()}
        with torch.enable_grad():
            extra: dict[str, Any] = {} if function is fused_attention else {"with_lse": True}
            gate = None if function is fused_attention else inputs.pop("gate", None)
            out, lse = function(**inputs, **see, dropout=0.0, **extra)
            assert lse is not None
            if gate is not None:
                out, inputs["gate"] = apply_gate(out, gate), gate
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
            loss = (out * weights).sum() + lse.sum()
            results.append([out, lse, *torch.autograd.grad(loss, list(inputs.values()))])
    names = ("out", "lse", *shapes)
    return {name: relative_error(got, want) for name, got, want in zip(names, *results, strict=True)}


def relative_error(got: Tensor, want: Tensor) -> float:
    got, want = got.detach().double(), want.detach().double()
    error = (got - want).norm() / want.norm()
    return float("inf") if error.isnan() else float(error)
