"""Losses in the unit that a corpus is usually reported in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    short: str
    long: str
    of: Callable[[float], float]
    """From nats per token."""
    logarithmic: bool = False
    """Whether curves belong on a logarithmic axis."""


def bits(nats: float) -> float:
    return nats / math.log(2)


def perplexity(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


MEASURES = {
    "byte": Measure("bpc", "bits per byte", bits),
    "char": Measure("bpc", "bits per character", bits),
    "word": Measure("ppl", "perplexity per word", perplexity, logarithmic=True),
    "bpe": Measure("ppl", "perplexity per token", perplexity, logarithmic=True),
    "symbol": Measure("bits", "bits per symbol", bits),
}
PLAIN = Measure("nats", "nats per token", float)


def measure(unit: object) -> Measure:
    """The measure of a corpus whose tokens are such units."""
    return MEASURES.get(str(unit), PLAIN)
