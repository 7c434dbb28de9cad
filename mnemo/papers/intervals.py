"""Paired differences between two rows of a grid: pooled spread, t-intervals and Holm's correction.

The rule (docs/experiments.md): the mean difference over seeds has a 95% t-interval whose standard deviation is pooled
over all pairs of an experiment; the comparisons of an experiment are corrected together (Holm, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

LEVEL = 0.05
"""Probability of a wrong decision among all comparisons of an experiment."""


def within(t: float, df: int) -> float:
    """Probability that |T| < t for Student's T with `df` degrees of freedom.

    The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(df))
    cosine, odd = math.cos(angle), df % 2
    term = total = 0.0 if df == 1 else cosine if odd else 1.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)


def t_quantile(df: int, level: float = LEVEL) -> float:
    """Half width of the two-sided interval of probability 1 - level, in standard errors."""
    low, high = 0.0, 1.0
    while within(high, df) < 1 - level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, df) < 1 - level else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Pair:
    """Two rows with the same seeds, hence the same first weights and text order."""

    first: str
    second: str
    scale: str
    """Unit of the differences; only pairs of one scale are pooled."""
    gains: tuple[float, ...]
    """By how much the first is better than the second, one value for each seed."""

    @property
    def mean(self) -> float:
        return fmean(self.gains)

    @property
    def identity(self) -> tuple[str, frozenset[str]]:
        """The same for both directions of a comparison."""
        return self.scale, frozenset((self.first, self.second))


class Spread(NamedTuple):
    """Pooled standard deviation of the paired differences of an experiment."""

    deviation: float
    df: int

    def standard_error(self, num_seeds: int) -> float:
        return self.deviation / math.sqrt(num_seeds)

    def half_width(self, num_seeds: int) -> float:
        """Of the 95% interval of a mean; infinite if no pair has two seeds."""
        return t_quantile(self.df) * self.standard_error(num_seeds) if self.df else math.inf

    def p_value(self, distance: float, num_seeds: int) -> float:
        """Two-sided probability of a mean that far from the truth."""
        if not self.df or distance == 0:
            return 1.0
        error = self.standard_error(num_seeds)
        return 1 - within(abs(distance) / error, self.df) if error else 0.0


def pooled(pairs: Iterable[Pair]) -> dict[str, Spread]:
    """By scale; each pair counts once, whatever the number and direction of the comparisons that use it."""
    distinct = {pair.identity: pair for pair in pairs}.values()
    return {scale: _pool([p for p in distinct if p.scale == scale]) for scale in {p.scale for p in distinct}}


def _pool(pairs: Sequence[Pair]) -> Spread:
    squares = math.fsum((gain - pair.mean) ** 2 for pair in pairs for gain in pair.gains)
    df = sum(len(pair.gains) - 1 for pair in pairs)
    return Spread(math.sqrt(squares / df) if df else math.nan, df)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: rejecting those below a level keeps the family's error at that level."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Comparison:
    """A question about a pair: is its gain, plus an allowance, at least `needed`?

    Yes: the interval lies above 0 and the mean reaches `needed`. No: the interval lies below `needed`. Otherwise open.
    """

    pair: Pair
    needed: float
    allowance: float = 0.0

    @property
    def mean(self) -> float:
        return self.pair.mean + self.allowance

    @property
    def leans_to(self) -> bool:
        """The only answer besides open that the mean allows."""
        return self.mean >= self.needed

    def p_value(self, spread: Spread) -> float:
        distance = self.mean if self.leans_to else self.needed - self.mean
        return spread.p_value(distance, len(self.pair.gains))


class Decision(NamedTuple):
    holds: bool | None
    half_width: float
    """Of the 95% interval of the pair's mean gain."""
    corrected: bool
    """Whether only Holm's correction keeps the comparison open."""


def decide(comparisons: Iterable[Comparison]) -> dict[Comparison, Decision]:
    """Decide all distinct comparisons of one experiment together."""
    family = list(dict.fromkeys(comparisons))
    spreads = pooled(each.pair for each in family)
    p_values = [each.p_value(spreads[each.pair.scale]) for each in family]
    decisions = {}
    for each, alone, adjusted in zip(family, p_values, holm(p_values), strict=True):
        half_width = spreads[each.pair.scale].half_width(len(each.pair.gains))
        holds = each.leans_to if adjusted < LEVEL else None
        decisions[each] = Decision(holds, half_width, corrected=alone < LEVEL <= adjusted)
    return decisions
