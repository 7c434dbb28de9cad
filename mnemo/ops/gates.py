"""Gates of attention heads: the output of every head and row times a number between 0 and 1.

Shapes: B batch, H heads, L queries, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_gate(out: Tensor, gate: Tensor) -> Tensor:
    """Outputs (B, H, L, D) times the sigmoid of (B, L, H)."""
    return out * torch.sigmoid(gate).transpose(1, 2)[..., None]
