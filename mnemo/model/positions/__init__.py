"""Position encodings: their configurations. The module of each is in `modules.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class PositionConfig:
    """What all configurations of position encodings have in common."""

    absolute: ClassVar[bool] = False
    """Positions count from the segment's beginning, so that a memory would have the same ones."""
    sinusoidal: ClassVar[bool] = False
    """Half of the model width are sines, half cosines."""
    projected: ClassVar[bool] = False
    """Every layer projects the sinusoids of distances."""
    signed: ClassVar[bool] = False
    """Keys ahead always have the position of their negative distance."""
    none: ClassVar[bool] = False
    """There are no positions."""

    @property
    def max_rows(self) -> int | None:
        """Longest segment; None for any length."""
        return None

    def published(self) -> Self:
        """The same encoding with the quirks of the published code."""
        return self


@dataclass(frozen=True, kw_only=True)
class Relative(PositionConfig):
    """Transformer-XL's: projected sinusoids of the distance, and biases u and v."""

    sinusoidal: ClassVar[bool] = True
    projected: ClassVar[bool] = True
    clamp: int | None = None
    """Largest distance; larger ones count as equal to it."""
    biases_per_layer: bool = False
    """u and v for every layer, not one pair for all."""
    shared_projection: bool = False
    """Project sinusoids with the layer's query and key weights instead of separate ones; u and v are then the query of
    distance 0 (the authors' Penn Treebank model)."""


@dataclass(frozen=True, kw_only=True)
class Shaw(PositionConfig):
    """Learned relative positions of Shaw et al. (2018), with the published code's learned biases."""

    distances: int = 1024
    """Rows of the table; larger distances use its last."""
    clamp: int | None = None
    """Number of different distances; larger ones count as equal to the last."""


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(PositionConfig):
    """Sinusoids of the absolute position, added to the input once (Vaswani et al., 2017)."""

    absolute: ClassVar[bool] = True
    sinusoidal: ClassVar[bool] = True
    clamp: int | None = None
    """Largest position; larger ones count as equal to it."""
    countdown: bool = False
    """Count down to 0 at the segment's last token, as the published code does, instead of up from 0."""

    def published(self) -> Sinusoidal:
        return replace(self, countdown=True)


@dataclass(frozen=True, kw_only=True)
class Learned(PositionConfig):
    """A learned absolute position added to every layer's input (Al-Rfou et al., 2018)."""

    absolute: ClassVar[bool] = True
    length: int = 512
    """Rows of the table: the longest segment."""
    align_end: bool = False
    """A segment's last token takes the last row, as in the published code; else its first token takes the first."""

    @property
    def max_rows(self) -> int:
        return self.length

    def published(self) -> Learned:
        return replace(self, align_end=True)


@dataclass(frozen=True, kw_only=True)
class Rotary(PositionConfig):
    """Rotary positions (Su et al., 2021)."""

    signed: ClassVar[bool] = True
    base: float = 10000.0
    """Ratio of the longest wavelength to the shortest, about."""


@dataclass(frozen=True, kw_only=True)
class NoPositions(PositionConfig):
    """No encoding: for recurrent layers, or for attention whose only notion of order is its mask."""

    none: ClassVar[bool] = True


AnyPositions = Relative | Shaw | Sinusoidal | Learned | Rotary | NoPositions
