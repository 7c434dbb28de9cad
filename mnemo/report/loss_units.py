"""Losses in the unit that is usual for a corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mnemo.units import bits, perplexity


@dataclass(frozen=True)
class LossUnit:
    short: str
    long: str
    of: Callable[[float], float]
    """Converts nats per token."""
    logarithmic: bool = False
    """Whether curves are drawn on a logarithmic axis."""


UNITS = {
    "byte": LossUnit("bpc", "bits per byte", bits),
    "char": LossUnit("bpc", "bits per character", bits),
    "word": LossUnit("ppl", "perplexity per word", perplexity, logarithmic=True),
    "bpe": LossUnit("ppl", "perplexity per token", perplexity, logarithmic=True),
    "symbol": LossUnit("bits", "bits per symbol", bits),
}
NATS = LossUnit("nats", "nats per token", float)


def loss_unit(token: object) -> LossUnit:
    """The unit for a corpus whose tokens are bytes, words and so on; nats for others."""
    return UNITS.get(str(token), NATS)
