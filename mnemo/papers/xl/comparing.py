"""From measurements to verdicts: means over seeds, and when one number is lower than another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import Results, Verdict

NOTICEABLE = 1e-3
"""The paper's own word for a gain in perplexity that counts: about 0.1%."""
ALONE = 1.5e-2
"""The share below which a difference between single runs may be that of their seeds."""
SMOKE = "; smoke only shows that everything runs: a few steps decide nothing"


class Measured(NamedTuple):
    """One quantity of one model, over seeds."""

    label: str
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.label} {spread(self.values)}"


def shown(value: float) -> str:
    """Four digits, which is what perplexities of words and of bytes both need."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def spread(values: Sequence[float]) -> str:
    """Mean and, over several seeds, deviation."""
    if not values:
        return "not measured"
    measured = Measured("", values)
    if len(values) == 1:
        return shown(measured.mean)
    return f"{shown(measured.mean)} ± {measured.deviation:.2g} ({len(values)} seeds)"


def is_lower(first: Measured, second: Measured, margin: float = NOTICEABLE) -> bool:
    """By more than a noticeable share, and by more than seeds differ."""
    gap = second.mean - first.mean
    return gap > margin * second.mean and gap > max(first.deviation, second.deviation)


def perplexity(nats: float) -> float:
    return math.exp(min(nats, 700.0))


def judged(results: Results, claim: str, paper: str, ours: str, holds: bool | None) -> Verdict:
    return Claim(claim, paper).judged(results, ours, holds, smoke=SMOKE)


def undecided(claim: str, paper: str, missing: Sequence[str]) -> Verdict:
    return Claim(claim, paper).open(f"not measured yet: {', '.join(missing)}")


def lower(
    results: Results, claim: str, paper: str, first: Measured, second: Measured, margin: float = NOTICEABLE
) -> Verdict:
    """The first is to be lower than the second, by a share of it; one seed decides no small difference."""
    missing = [one.label for one in (first, second) if not one.values]
    if missing:
        return undecided(claim, paper, missing)
    ours, gap = f"{first}; {second}", second.mean - first.mean
    if 1 in (len(first.values), len(second.values)) and abs(gap) < ALONE * second.mean:
        return judged(results, claim, paper, f"{ours}; one seed decides nothing below {ALONE:.1%}", None)
    if is_lower(first, second, margin):
        return judged(results, claim, paper, ours, True)
    if gap + max(first.deviation, second.deviation) > margin * second.mean:
        return judged(results, claim, paper, f"{ours}; seeds differ by as much", None)
    return judged(results, claim, paper, ours, False)
