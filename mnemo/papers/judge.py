"""One judge for all papers: from claims and results to verdicts, by one rule (docs/experiments.md).

A claim names rows of a grid. Claims of one experiment are judged together, because they share the pooled spread of
their paired differences and Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, Protocol

from mnemo.papers.experiment import SELF_TEST, Results, Verdict
from mnemo.papers.grid import ACCURACY, Grid, Measure
from mnemo.papers.intervals import Comparison, Decision, Pair, decide, pooled
from mnemo.report.findings import Margin

DELTA = 0.003
"""Share of the worse loss that a gain must reach to count as better."""
KEPT = 0.5
"""Share of a memory's gain that a row may lose and still be as good."""
SOLVED = 0.99
"""Accuracy that every run must reach to solve a task."""
FAR = 0.1
"""Accuracy that counts as far below."""
ENOUGH_SEEDS = 3
NOTHING_IN_COMMON = "no seed is common to all rows"
Decisions = Mapping[Comparison, Decision]


class Outcome(NamedTuple):
    ours: str
    """The scores."""
    holds: bool | None
    num_seeds: int | None = None
    """None if the outcome does not depend on a seed."""
    test: str = ""
    """The statistical test of the scores, in words."""
    margin: Margin | None = None


class Claim(Protocol):
    """One sentence that is tested, with the paper's numbers."""

    @property
    def text(self) -> str: ...

    @property
    def paper(self) -> str: ...

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        """The statistical tests of the claim; none while a row is missing."""
        ...

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome: ...


def judge(grid: Grid, results: Results, claims: Sequence[Claim]) -> list[Verdict]:
    """Verdicts on all claims of an experiment, complete or not: what is not known yet is open."""
    decisions = decide(each for claim in claims for each in claim.comparisons(grid, results))
    return [verdict(claim, claim.outcome(grid, results, decisions), results) for claim in claims]


def verdict(claim: Claim, outcome: Outcome, results: Results) -> Verdict:
    num_seeds, self_test = outcome.num_seeds, results.budget == "self-test"
    preliminary = f"preliminary, n = {num_seeds}" if num_seeds is not None and num_seeds < ENOUGH_SEEDS else ""
    parts = (outcome.ours, outcome.test, preliminary, SELF_TEST if self_test else "")
    seeds = "" if num_seeds is None else f" ({num_seeds} seed{'' if num_seeds == 1 else 's'})"
    return Verdict(
        claim=claim.text,
        paper=claim.paper,
        ours="; ".join(filter(None, parts)),
        holds=None if self_test else outcome.holds,
        brief=f"{outcome.ours}{seeds}",
        margin=outcome.margin,
    )


class Gain(NamedTuple):
    """How much better one row is than another; the grid's measure unless given."""

    better: str
    worse: str
    measure: Measure | None = None

    def by_seed(self, grid: Grid, results: Results) -> dict[int, float]:
        """For the seeds that both rows have; positive if `better` is better."""
        measure = self.measure or grid.measure
        one, other = (grid.by_seed(results, key, measure) for key in (self.better, self.worse))
        sign = 1 if measure.higher_is_better else -1
        return {seed: sign * (one[seed] - other[seed]) for seed in sorted(one.keys() & other.keys())}

    def pair(self, grid: Grid, results: Results) -> Pair | None:
        measure, gains = self.measure or grid.measure, tuple(self.by_seed(grid, results).values())
        name = f"{measure.part} {measure.key}"
        return Pair(f"{self.better} {name}", f"{self.worse} {name}", measure.scale, gains) if gains else None

    def delta(self, grid: Grid, results: Results) -> float:
        """The smallest gain that counts: a share of the worse row's loss."""
        return DELTA * fmean(grid.by_seed(results, self.worse, self.measure).values())

    def text(self, grid: Grid, results: Results) -> str:
        return scores(grid, results, (self.better, self.worse), self.measure)


def scores(grid: Grid, results: Results, keys: Sequence[str], measure: Measure | None = None) -> str:
    """Labels of rows with their means and deviations."""
    measure = measure or grid.measure
    values = [(grid.label(key), grid.by_seed(results, key, measure)) for key in keys]
    listed = ", ".join(f"{label} {measure.text(list(found.values()))}" for label, found in values if found)
    return f"{listed} {measure.unit}"


def interval(comparison: Comparison, decision: Decision) -> str:
    """The mean gain with its interval, and whether only the correction keeps it from deciding."""
    pair, half = comparison.pair, decision.half_width
    if math.isinf(half):
        return f"{pair.mean:.4f} {pair.scale}; the spread over seeds is unknown"
    text = f"{pair.mean:.4f} ({pair.mean - half:.4f} to {pair.mean + half:.4f}) {pair.scale}"
    return f"{text}; open after the correction for several comparisons" if decision.corrected else text


def gain_interval(
    grid: Grid, results: Results, claims: Sequence[Claim], better: str, worse: str
) -> tuple[float, float, float] | None:
    """Mean gain and its 95% interval, with the spread pooled over the comparisons of all claims.

    None if the rows have no seed in common, or the spread is unknown.
    """
    pair = Gain(better, worse).pair(grid, results)
    spreads = pooled(each.pair for claim in claims for each in claim.comparisons(grid, results))
    if pair is None or pair.scale not in spreads or not spreads[pair.scale].df:
        return None
    half = spreads[pair.scale].half_width(len(pair.gains))
    return pair.mean, pair.mean - half, pair.mean + half


def unmeasured(grid: Grid, results: Results, keys: Sequence[str], measure: Measure | None = None) -> Outcome:
    return Outcome(grid.missing(results, keys, measure) or NOTHING_IN_COMMON, None)


@dataclass(frozen=True)
class Better:
    """`better` has a lower loss than `worse`, by 0.3% of it or more."""

    text: str
    paper: str
    better: str
    worse: str
    measure: Measure | None = None
    """The grid's unless given."""
    needed: float | None = None
    """The smallest mean gain that counts, if it is not 0.3% of a loss."""
    allowance: float = 0.0
    """How much `better` may be worse, for a claim that it is nearly as good."""

    @property
    def gain(self) -> Gain:
        return Gain(self.better, self.worse, self.measure)

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        pair = self.gain.pair(grid, results)
        if pair is None:
            return []
        needed = self.gain.delta(grid, results) if self.needed is None else self.needed
        return [Comparison(pair, needed, self.allowance)]

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        found = self.comparisons(grid, results)
        if not found:
            return unmeasured(grid, results, (self.better, self.worse), self.measure)
        decision, pair = decisions[found[0]], found[0].pair
        loss = fmean(grid.by_seed(results, self.worse, self.measure).values())
        margin = Margin(pair.mean, None if math.isinf(decision.half_width) else decision.half_width, loss)
        test = f"gain {interval(found[0], decision)}"
        return Outcome(self.gain.text(grid, results), decision.holds, len(pair.gains), test, margin)


def far_below(text: str, paper: str, low: str, high: str) -> Better:
    """The accuracy of `low` is below that of `high` by 0.1 or more."""
    return Better(text, paper, high, low, ACCURACY, FAR)


def at_most_worse(text: str, paper: str, row: str, like: str, allowance: float, measure: Measure) -> Better:
    """`row` is worse than `like` by less than an allowance, in the stored unit of the measure."""
    return Better(text, paper, row, like, measure, needed=0.0, allowance=allowance)


@dataclass(frozen=True)
class AsGood:
    """`row` loses less than half of a gain against `like`; the gain itself must be clear."""

    text: str
    paper: str
    row: str
    like: str
    gain: Gain
    """Usually that of `like` over the same model without memory."""

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        gain = self.gain.pair(grid, results)
        pair = Gain(self.row, self.like, self.gain.measure).pair(grid, results)
        if gain is None or pair is None:
            return []
        clear = Comparison(gain, self.gain.delta(grid, results))
        return [clear, Comparison(pair, needed=0.0, allowance=KEPT * gain.mean)]

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        found, keys = self.comparisons(grid, results), (self.row, self.like, self.gain.better, self.gain.worse)
        keys = tuple(dict.fromkeys(keys))
        if not found:
            return unmeasured(grid, results, keys, self.gain.measure)
        clear, kept = found
        text, seeds = scores(grid, results, keys, self.gain.measure), min(len(each.pair.gains) for each in found)
        if not decisions[clear].holds:
            names = f"{grid.label(self.gain.better)} over {grid.label(self.gain.worse)}"
            return Outcome(text, None, seeds, f"no clear gain of {names}: {interval(clear, decisions[clear])}")
        test = f"gain {interval(kept, decisions[kept])}; a loss of {kept.allowance:.4f} is allowed"
        return Outcome(text, decisions[kept].holds, seeds, test)


@dataclass(frozen=True)
class Exceeds:
    """One gain is larger than another, by 0.3% of a loss or more."""

    text: str
    paper: str
    larger: Gain
    smaller: Gain

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        large, small = (gain.by_seed(grid, results) for gain in (self.larger, self.smaller))
        gains = tuple(large[seed] - small[seed] for seed in sorted(large.keys() & small.keys()))
        if not gains:
            return []
        scale = (self.larger.measure or grid.measure).scale
        return [Comparison(Pair(str(self.larger), str(self.smaller), scale, gains), self.larger.delta(grid, results))]

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        found = self.comparisons(grid, results)
        if not found:
            lacking = (grid.missing(results, gain[:2], gain.measure) for gain in (self.larger, self.smaller))
            return Outcome(next(filter(None, lacking), NOTHING_IN_COMMON), None)
        text = " against ".join(gain.text(grid, results) for gain in (self.larger, self.smaller))
        decision = decisions[found[0]]
        return Outcome(text, decision.holds, len(found[0].pair.gains), f"gain {interval(found[0], decision)}")


@dataclass(frozen=True)
class Within:
    """Every run of these rows lies in a range."""

    text: str
    paper: str
    rows: tuple[str, ...]
    least: float
    most: float = math.inf
    measure: Measure = ACCURACY

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        return []

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        if grid.missing(results, self.rows, self.measure):
            return unmeasured(grid, results, self.rows, self.measure)
        runs = {key: grid.by_seed(results, key, self.measure) for key in self.rows}
        inside = all(self.least <= value <= self.most for values in runs.values() for value in values.values())
        complete = all(len(values) == len(row.seeds) for key, values in runs.items() if (row := grid.row(key)))
        text = scores(grid, results, self.rows, self.measure)
        holds = inside if complete or not inside else None
        return Outcome(text if complete else f"{text}; runs are missing", holds, min(map(len, runs.values())))


def solves(text: str, paper: str, *rows: str, measure: Measure = ACCURACY) -> Within:
    """Every run of these rows reaches an accuracy of 0.99."""
    return Within(text, paper, rows, SOLVED, measure=measure)


@dataclass(frozen=True)
class Every:
    """A claim that holds if all its parts hold, and fails if one fails."""

    text: str
    paper: str
    parts: tuple[Claim, ...]

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        return [each for part in self.parts for each in part.comparisons(grid, results)]

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        found = [part.outcome(grid, results, decisions) for part in self.parts]
        weakest = min(found, key=lambda each: (False, None, True).index(each.holds))
        count = sum(each.holds is True for each in found)
        seeds = [each.num_seeds for each in found if each.num_seeds is not None]
        test = "; ".join(filter(None, (weakest.ours, weakest.test)))
        measured = seeds or any(each.holds is not None for each in found)
        parts = f"of {len(found)} comparisons"
        ours = f"{count} {parts} hold" if measured else f"none {parts} is measured"
        return Outcome(ours, weakest.holds, min(seeds, default=None), test)


@dataclass(frozen=True)
class Reaches:
    """A row's mean is at most a share above the published value."""

    text: str
    paper: str
    row: str
    value: float
    """In the unit of the measure."""
    tolerance: float = 0.01

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        return []

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        if grid.missing(results, (self.row,)):
            return unmeasured(grid, results, (self.row,))
        values = list(grid.by_seed(results, self.row).values())
        mean = fmean(map(grid.measure.shown, values))
        text = scores(grid, results, (self.row,))
        return Outcome(text, mean <= self.value * (1 + self.tolerance), len(values))


@dataclass(frozen=True)
class Observed:
    """A claim about something other than scores: time, memory, counts."""

    text: str
    paper: str
    observe: Callable[[Results], Outcome | None]
    """None if nothing is measured yet."""

    def comparisons(self, grid: Grid, results: Results) -> list[Comparison]:
        return []

    def outcome(self, grid: Grid, results: Results, decisions: Decisions) -> Outcome:
        return self.observe(results) or Outcome("not measured yet", None)


def undecided(text: str, paper: str, why: str) -> Observed:
    """A claim that this budget cannot decide."""
    return Observed(text, paper, lambda results: Outcome(why, None))
