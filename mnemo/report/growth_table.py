"""The table of `mnemo analyse --growth`: the largest sizes at every kept checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mnemo.analysis.growth import Sizes, most_grown
from mnemo.units import bits

HEADERS = ("step", "bits per token", "residual rows", "largest score", "largest logit", "matrix that grew most")


def growth_rows(found: Mapping[int, Sizes]) -> list[tuple[int | str | None, ...]]:
    """The largest sizes of every step, under `HEADERS`; None for no value."""
    first = next(iter(found.values()))
    return [_row(step, each, first) for step, each in found.items()]


def _row(step: int, now: Sizes, first: Sizes) -> tuple[int | str | None, ...]:
    grown = None if now is first else most_grown(now.weights, first.weights)
    matrix = None if grown is None else f"{grown[1]:.3g}x {grown[0]}"
    rows, score = _largest_of(now.rows, "after stage"), _largest_of(now.scores, "in layer")
    return step, f"{bits(now.loss):.4f}", rows, score, f"{now.logits:.3g}", matrix


def _largest_of(values: Sequence[float], where: str) -> str | None:
    """`1.5 in layer 3`; None if there are no values."""
    if not values:
        return None
    index = max(range(len(values)), key=lambda index: values[index])
    return f"{values[index]:.3g} {where} {index}"
