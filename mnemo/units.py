"""Units: nats to bits and to perplexity, sizes in bytes."""

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


def size_text(count: int) -> str:
    """`512 B`, `1.5 KiB`, `20 MiB`, `3.25 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
