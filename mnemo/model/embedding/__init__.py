"""Token embeddings and softmax: plain, factorised, or adaptive (Grave et al., 2017; Baevski & Auli, 2019).

With cutoffs, the vocabulary is divided into bins. The table of a bin is narrower by `div_val` than the one before. The
softmax of the first bin also scores one cluster for each further bin, in the order of the bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SPARE_ROWS = 64
SPARE_SHARE = 1 / 8
"""A bin of fixed size has room for its share of the targets by Zipf's law, an eighth of that, and this many rows."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Embedding and softmax: plain, or adaptive with bins of rarer tokens."""

    dim: int | None = None
    """Width of the embedding; the model width if left out."""
    cutoffs: tuple[int, ...] = ()
    """First ids of the further bins of an adaptive embedding; none for a plain one."""
    div_val: int = 1
    """Factor by which each bin is narrower than the one before."""
    tie_weights: bool = True
    """The softmax uses the embedding's tables."""
    tie_projections: tuple[bool, ...] = (False,)
    """For every bin: the softmax uses the embedding's projection."""

    def __post_init__(self) -> None:
        if list(self.cutoffs) != sorted(set(self.cutoffs)) or any(c <= 0 for c in self.cutoffs):
            raise ValueError(f"cutoffs {self.cutoffs} must be positive and ascending")
        if self.div_val < 1 or (self.dim is not None and self.dim < 1):
            raise ValueError(f"embedding width {self.dim}, each bin {self.div_val} times narrower")
        if len(self.tie_projections) not in (1, len(self.cutoffs) + 1):
            raise ValueError(f"{len(self.tie_projections)} projection ties for {len(self.cutoffs) + 1} bins")

    def ties(self) -> tuple[bool, ...]:
        bins = len(self.cutoffs) + 1
        return self.tie_projections if len(self.tie_projections) == bins else self.tie_projections * bins


@dataclass(frozen=True)
class Bins:
    """Edges and widths of the bins of a configuration."""

    edges: tuple[int, ...]
    widths: tuple[int, ...]
    projected: bool
    """Whether tables and model differ in width, so that projections exist."""

    @staticmethod
    def of(config: EmbeddingConfig, vocab_size: int, dim: int) -> Bins:
        edges = (0, *config.cutoffs, vocab_size)
        if config.cutoffs and config.cutoffs[-1] >= vocab_size:
            raise ValueError(f"cutoff {config.cutoffs[-1]} is not below the vocabulary size {vocab_size}")
        width = config.dim or dim
        widths = tuple(width // config.div_val**i for i in range(len(edges) - 1))
        if widths[-1] == 0:
            raise ValueError(
                f"embedding width {width} is too small for {len(widths)} bins, each {config.div_val}x narrower"
            )
        return Bins(edges, widths, config.div_val > 1 or width != dim)

    def __len__(self) -> int:
        return len(self.widths)

    def zipf_shares(self) -> list[float]:
        """The share of tokens in each bin if the word of rank r has a frequency of 1 / r."""
        below = [0.0, *(math.log(edge + 1) for edge in self.edges[1:])]
        return [(high - low) / below[-1] for low, high in zip(below, below[1:], strict=False)]

    def fixed_sizes(self, num_targets: int) -> list[int]:
        """Rows of each further bin in a program whose shapes do not depend on the targets.

        They depend on nothing but the configuration, so that a resumed run repeats every rounding. Texts have fewer
        rare words than by Zipf's law, because vocabularies are closed.
        """
        wanted = [(1 + SPARE_SHARE) * share * num_targets + SPARE_ROWS for share in self.zipf_shares()[1:]]
        return [min(num_targets, SPARE_ROWS * math.ceil(rows / SPARE_ROWS)) for rows in wanted]
