"""Attention that torch can compile on a CPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mnemo import ops
from mnemo.ops.gates import apply_gate


def by_the_equation(
    *tensors: Tensor,
    with_lse: bool = False,
    num_calls: int = 1,
    impl: str = "auto",
    gate: Tensor | None = None,
    **see: Any,
) -> tuple[Tensor, Tensor]:
    """Replacement for `relative_attention` that computes the paper's equation."""
    attended = ops.relative_attention_reference(*tensors, **see)
    return attended.out if gate is None else apply_gate(attended.out, gate), attended.lse
