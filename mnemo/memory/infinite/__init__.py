"""infinity-former's memory (Martins et al., 2022): the far past as a continuous signal of fixed size.

A layer keeps a short-term memory like Transformer-XL's. Blocks of rows that leave it are fitted, by ridge regression
on Gaussian basis functions, to a signal on [0, 1]: the old signal is contracted to [0, tau], and the new block takes
the rest. Every query attends to the signal with its own Gaussian density. Sticky memories sample the old signal more
densely where it received attention.

A block is fitted at the beginning of the segment after the one in which it left, so that its gate has a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mnemo.memory.configuration import Traits

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage


LARGEST_FIT = 8192
"""Largest number of basis functions, rows of a block and samples: a regression needs their square in memory."""


@dataclass(frozen=True, kw_only=True)
class Infinite:
    """Slots, and older rows as a continuous signal of fixed size (Martins et al., 2022)."""

    length: int = 512
    """Slots of the short-term memory."""
    basis: int = 512
    """Basis functions of the signal: every centre has one of each width."""
    widths: tuple[float, ...] = (0.01, 0.05)
    """Deviations of the basis functions."""
    block: int = 512
    """Rows that are fitted together."""
    samples: int = 512
    """Points at which the old signal is sampled before it is contracted."""
    tau: float = 0.75
    """Share of [0, 1] that the old signal keeps."""
    ridge: float = 1.0
    """Weight of the regression's penalty."""
    min_variance: float = 1e-6
    """Smallest variance of a query's density."""
    sticky: bool = False
    """Sample the old signal more densely where it received attention."""
    gate: Literal["none", "layer", "shared"] = "none"
    """Filter blocks by a convolution and a sigmoid: one for every layer, or one for all."""
    kl_weight: float = 1e-6
    """Weight of the regulariser in the training loss."""
    kl_deviation: float = 0.05
    """Deviation of the density that the regulariser prefers."""
    kl_mean: float | None = None
    """Mean that it prefers; none if left out (the published configurations use -1)."""
    exact_padding: bool = True
    """Pad the refit evenly; the published spacing has a mistake in its denominator."""
    seed: int = 0
    """Seed of the sticky samples, which also depend on how often a row has sampled."""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"memory length {self.length} is negative")
        if not self.widths or self.basis % len(self.widths) or min(self.basis, self.block, self.samples) < 1:
            raise ValueError(f"{self.basis} basis functions of {len(self.widths)} widths, blocks of {self.block}")
        if max(self.basis, self.block, self.samples) > LARGEST_FIT or min(self.widths) <= 0:
            raise ValueError(f"basis, block and samples are at most {LARGEST_FIT:,}, and widths positive")
        if not 0 < self.tau < 1:
            raise ValueError(f"tau = {self.tau} must lie between 0 and 1")

    @property
    def traits(self) -> Traits:
        return Traits(
            grouped=self.gate == "shared",
            compile_obstacle="how often an infinite memory fits depends on the data",
            conditional_weights=self.gate != "none",
            stand_in_slots=self.length,
            besides=f"a signal of {self.basis:,} basis functions",
        )

    def check(self, model: Any) -> None:
        """It fits every model."""

    def published(self) -> Infinite:
        return replace(self, exact_padding=False, kl_mean=-1.0)

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        from mnemo.memory.infinite.modules import InfiniteStage

        return InfiniteStage(self, layers)
