"""Units: nats to bits and to perplexity, sizes in bytes, durations and energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

Loss = TypeVar("Loss", float, "np.ndarray")
LARGEST_EXPONENT = 700
"""exp of a larger number overflows a float64."""
DURATIONS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
"""Seconds of each unit, largest first."""
ENERGIES = (("kWh", 1000.0), ("Wh", 1.0))
"""Watt hours of each unit, largest first."""


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


def duration_text(seconds: float) -> str:
    """`8.00 s`, `22.2 min`, `3.45 h`, `12.0 days`."""
    return _in_largest_unit(seconds, DURATIONS)


def energy_text(watt_hours: float) -> str:
    """`258 Wh`, `1.05 kWh`."""
    return _in_largest_unit(watt_hours, ENERGIES)


def _in_largest_unit(value: float, units: Sequence[tuple[str, float]]) -> str:
    """The value with three digits or more, in the largest unit of which it is at least one, or in the smallest."""
    name, size = next((unit for unit in units if value >= unit[1]), units[-1])
    number = value / size
    decimals = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{decimals}f} {name}"
