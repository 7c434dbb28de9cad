"""The Compressive Transformer's memory (Rae et al., 2020): rows that leave the memory are compressed, not forgotten.

A layer attends to [compressed memory ; memory ; segment], one position a slot. The rows that leave the memory are
compressed `ratio` to one. Neither memory carries gradient, so the compression has its own loss: attention to the
compressed rows must resemble attention to the rows themselves, or a decoder must reconstruct them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mnemo.memory.configuration import Traits

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage


Function = Literal["conv", "dilated", "mean", "max", "most_used"]


@dataclass(frozen=True, kw_only=True)
class Compressive:
    """Slots, and a second memory of compressed older rows (Rae et al., 2020)."""

    length: int = 512
    """Slots of the memory."""
    compressed: int = 512
    """Slots of the compressed memory; 0 forgets instead, which is Transformer-XL."""
    ratio: int = 4
    """Rows that become one."""
    function: Function = "conv"
    """How rows are compressed: a convolution, a stack of dilated ones, pooling, or the rows with most attention."""
    loss: Literal["attention", "autoencoding", "none"] = "attention"
    """The loss that trains a learned function."""
    remainder: Literal["wait", "drop"] = "wait"
    """Rows that do not fill a block wait for the next ones, or are dropped (as published)."""

    def __post_init__(self) -> None:
        if self.length < 0 or self.compressed < 0 or self.ratio < 1:
            raise ValueError(f"memory {self.length}, compressed memory {self.compressed} and ratio {self.ratio}")
        if self.function == "dilated" and self.ratio & (self.ratio - 1):
            raise ValueError(f"dilated compression halves at each level: a ratio of {self.ratio} is no power of two")

    @property
    def traits(self) -> Traits:
        besides = f"{self.compressed:,} compressed slots of {self.ratio} rows" if self.compressed else ""
        return Traits(stand_in_slots=self.length + self.compressed, besides=besides)

    def check(self, model: Any) -> None:
        """It fits every model."""

    def published(self) -> Compressive:
        return replace(self, remainder="drop")

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        from mnemo.memory.compressive.modules import CompressiveStage

        (layer,) = layers
        return CompressiveStage(self, layer)
