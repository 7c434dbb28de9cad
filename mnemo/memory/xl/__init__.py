"""Transformer-XL's memory (Dai et al., 2019): a layer keeps its last M inputs and attends to them as a constant.

Training keeps the inputs, because the weights that project them change. Inference keeps their projected keys and
values, which do not change: the same numbers at a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mnemo.memory.configuration import Traits

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage


@dataclass(frozen=True, kw_only=True)
class XL:
    """Transformer-XL's memory: each layer keeps its last inputs as slots (Dai et al., 2019)."""

    traits: ClassVar[Traits] = Traits(key_value_cache=True)
    length: int = 512
    """Slots of memory of each layer; 0 for none."""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"memory length {self.length} is negative")

    def check(self, model: Any) -> None:
        """It fits every model."""

    def published(self) -> XL:
        return self

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        from mnemo.memory.xl.modules import XLStage

        (layer,) = layers
        return XLStage(layer)
