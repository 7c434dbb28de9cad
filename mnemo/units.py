"""Units of a loss: nats to bits and to perplexity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

Loss = TypeVar("Loss", float, "np.ndarray")
LARGEST_EXPONENT = 700
"""exp of a larger number overflows a float64."""


def bits(nats: Loss) -> Loss:
    return nats / math.log(2)


def perplexity(nats: float) -> float:
    """exp(nats), or infinity if that is more than a float64 can hold."""
    return math.inf if nats > LARGEST_EXPONENT else math.exp(nats)
