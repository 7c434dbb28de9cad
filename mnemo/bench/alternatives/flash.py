"""No memory, and attention inside a segment by torch's flash attention: what a plain transformer uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.memory.configuration import Traits
from mnemo.memory.protocol import Scope, Stage
from mnemo.memory.xl.modules import XLStage
from mnemo.model.layers.modules import Attention
from mnemo.model.positions import NoPositions, Rotary
from mnemo.ops import Causal


@dataclass(frozen=True, kw_only=True)
class Flash:
    """No memory; torch's flash attention inside each segment."""

    traits: ClassVar[Traits] = Traits(key_value_cache=True)
    length: int = 0

    def check(self, model: Any) -> None:
        if self.length or model.dropout.attention or not isinstance(model.positions, (Rotary, NoPositions)):
            raise ValueError("flash attention takes no memory, no dropout, and no positions but rotary ones")

    def published(self) -> Flash:
        return self

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        (layer,) = layers
        layer.attention.__class__ = FlashAttention  # type: ignore[assignment]
        return XLStage(layer)


class FlashAttention(Attention):
    def applies_gates(self, q: Tensor, scope: Scope) -> bool:
        return False

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scope: Scope, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        # Padding is on the right, where no query of a text looks. A single token of an open segment has more keys.
        whole = q.shape == k.shape and not scope.offset and scope.mask == Causal()
        if not whole or scope.record is not None or scope.with_lse:
            return super().forward(q, k, v, scope, gate)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2), None
