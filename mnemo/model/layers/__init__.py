"""The options of a transformer layer: activation, norm, dropout. The layer is in `modules.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu", "gelu", "squared_relu"]


NormKind = Literal["layer", "rms"]


@dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    """Dropout probabilities, by the place where values are dropped."""

    word: float = 0.0
    """Whole rows of the embedding table."""
    input: float = 0.0
    """The embedded input."""
    positions: float = 0.0
    """The sinusoids of relative positions."""
    qkv: float = 0.0
    """Queries, keys and values."""
    attention: float = 0.0
    """Attention probabilities."""
    projection: float = 0.0
    """Attention output, after its projection; output of recurrent layers except the last."""
    inner: float = 0.0
    """Inside the feed-forward, after its activation."""
    feed_forward: float = 0.0
    """Feed-forward output."""
    output: float = 0.0
    """The last layer's output, before the softmax."""
    locked: bool = False
    """One mask for all positions of a row (variational dropout), except on attention probabilities."""

    def __post_init__(self) -> None:
        for name in ("word", "input", "positions", "qkv", "attention", "projection", "inner", "feed_forward", "output"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"dropout {name} = {getattr(self, name)} is not in [0, 1)")

    @staticmethod
    def published(dropout: float, attention: float = 0.0) -> DropoutConfig:
        """One rate at every site of the published code, another on attention probabilities."""
        return DropoutConfig(
            input=dropout,
            positions=dropout,
            attention=attention,
            projection=dropout,
            inner=dropout,
            feed_forward=dropout,
            output=dropout,
        )
