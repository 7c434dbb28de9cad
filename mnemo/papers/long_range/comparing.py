"""Trained cells against each other: means over seeds, and verdicts on differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import CellResult, Results, Table, Verdict, look_up
from mnemo.papers.long_range.grids import ALL, NONE, Layout
from mnemo.report.plots import Figure, Line, line_figure, lines_over_seeds
from mnemo.report.style import NUM_COLORS

PLACE_COLORS = {"all": 0, "interleaved": 1, "last": 2, "first": 3, "middle": 4, "none": 7}
"""The same in all figures of a page."""
TRAINED_TOY = "; a toy model after two steps decides nothing"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What a grid is judged by; lower is better."""

    key: str
    """Of a score."""
    unit: str
    digits: int
    equal: Callable[[float], float]
    """The largest difference from a value that counts as none."""
    of_loss: Callable[[float], float]
    """From nats."""

    def of(self, result: CellResult) -> float:
        return float(result.values["scores"]["test"][self.key])

    def clear(self, value: float, seeds: int) -> float:
        """The least difference from a value that is one; a single seed has to show twice as much."""
        return self.equal(value) / (2 if seeds > 1 else 1)

    def text(self, values: Sequence[float]) -> str:
        """Mean, with the deviation of several."""
        mean = f"{statistics.fmean(values):.{self.digits}f}"
        return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{self.digits}f}"


BITS = Measure(
    key="bits_per_token", unit="bpc", digits=4, equal=lambda _: 0.01, of_loss=lambda nats: nats / math.log(2)
)
PERPLEXITY = Measure(key="perplexity", unit="ppl", digits=2, equal=lambda value: 0.02 * value, of_loss=math.exp)


def scored(results: Results, **labels: object) -> list[CellResult]:
    return [result for result in results.select(**labels) if look_up(result.values, "scores.test")]


def find(results: Results, layout: Layout) -> list[CellResult]:
    """All seeds of a plan."""
    found = scored(results, share=layout.share)
    return [r for r in found if not layout.matters or r.labels["arrangement"] == layout.arrangement]


def by_seed(results: Results, layout: Layout, measure: Measure) -> dict[int, float]:
    return {result.labels["seed"]: measure.of(result) for result in find(results, layout)}


@dataclass(frozen=True)
class Pair:
    """Two plans with the same first weights and the same text, seed by seed."""

    first: tuple[float, ...]
    second: tuple[float, ...]

    @staticmethod
    def of(results: Results, first: Layout, second: Layout, measure: Measure) -> Pair:
        one, other = by_seed(results, first, measure), by_seed(results, second, measure)
        seeds = sorted(one.keys() & other.keys())
        return Pair(tuple(one[seed] for seed in seeds), tuple(other[seed] for seed in seeds))

    @property
    def differences(self) -> tuple[float, ...]:
        return tuple(a - b for a, b in zip(self.first, self.second, strict=True))

    @property
    def difference(self) -> float:
        return statistics.fmean(self.differences)

    def text(self, measure: Measure) -> str:
        both = f"{measure.text(self.first)} against {measure.text(self.second)} {measure.unit}"
        seeds = f"{len(self.first)} seeds" if len(self.first) > 1 else "1 seed"
        return f"{both}: {self.difference:+.{measure.digits}f} ({seeds})"


def worse(results: Results, first: Layout, second: Layout, measure: Measure, *, claim: str, paper: str) -> Verdict:
    """Whether `first` is worse than `second` with every seed.

    Seeds that disagree decide nothing, nor does a difference that is too small to be clear.
    """
    pair = Pair.of(results, first, second, measure)
    if not pair.first:
        return missing(claim, paper)
    ours = pair.text(measure)
    if results.budget == "smoke":
        return judged(results, claim, paper, ours, None)
    signs = {difference > 0 for difference in pair.differences}
    if len(signs) > 1:
        return judged(results, claim, paper, f"{ours}; the seeds disagree", None)
    needed = measure.clear(statistics.fmean(pair.second), len(pair.first))
    if abs(pair.difference) < needed:
        few = "one seed decides" if len(pair.first) == 1 else "they decide"
        little = f"{few} nothing below {needed:.{measure.digits}f} {measure.unit}"
        return judged(results, claim, paper, f"{ours}; {little}", None)
    return judged(results, claim, paper, ours, signs == {True})


def worst(
    results: Results, first: Layout, others: Sequence[Layout], measure: Measure, *, claim: str, paper: str
) -> Verdict:
    """Whether `first` is worse than the worst of `others`, all of which must be known."""
    means = {other: statistics.fmean(found.values()) for other in others if (found := by_seed(results, other, measure))}
    if len(means) < len(others):
        return missing(claim, paper)
    return worse(results, first, max(means, key=lambda other: means[other]), measure, claim=claim, paper=paper)


def equal(results: Results, first: Layout, measure: Measure, *, claim: str, paper: str) -> Verdict:
    """Whether `first` is as good as long memories everywhere, or better.

    Where these gain too little over none, nothing can be lost by leaving them out, and nothing is shown by a plan that
    is no better than they are.
    """
    pair = Pair.of(results, first, ALL, measure)
    gain = Pair.of(results, NONE, ALL, measure)
    if not pair.first:
        return missing(claim, paper)
    ours, limit = pair.text(measure), measure.equal(statistics.fmean(pair.second))
    if results.budget == "smoke":
        return judged(results, claim, paper, ours, None)
    if pair.difference < -limit:
        return judged(results, claim, paper, f"{ours}; better", True)
    if not gain.first:
        return missing(claim, paper)
    if gain.difference <= 2 * limit:
        little = f"long memories gain only {gain.difference:.{measure.digits}f} here, too little to compare with"
        return judged(results, claim, paper, f"{ours}; {little}", None)
    kept = f"; keeps {1 - pair.difference / gain.difference:.0%} of what they gain"
    return judged(results, claim, paper, ours + kept, pair.difference <= limit)


def missing(claim: str, paper: str) -> Verdict:
    return Claim(claim, paper).open("cells that it needs have not been run")


def judged(
    results: Results, claim: str, paper: str, ours: str, holds: bool | None, *, smoke: str = TRAINED_TOY
) -> Verdict:
    return Claim(claim, paper).judged(results, ours, holds, smoke=smoke)


def learning_curves(
    results: Results, layouts: Sequence[Layout], measure: Measure, *, slug: str, title: str
) -> list[Figure]:
    """Validation by step: the mean over seeds, and their range as a band."""
    points = [
        (result.labels["plan"], float(step), measure.of_loss(loss))
        for layout in layouts
        for result in find(results, layout)
        for step, loss in result.values.get("curve", [])
    ]
    if not points:
        return []
    colors = {result.labels["plan"]: _color(layout) for layout in layouts for result in find(results, layout)}
    lines = [replace(line, color=colors[line.label]) for line in lines_over_seeds(points)]
    caption, top = "Validation set during training. Lines are means over seeds, bands their range.", settled(lines)
    if top is not None and any(point[2] > top for point in points):
        caption += f" Cut off above {top:.4g}."
    return [line_figure(slug, title, caption, lines, x_label="step", y_label=measure.unit, y_max=top, reference=None)]


def _color(layout: Layout) -> int:
    """By its place, with dashes of its share: a sixth is dashed beside a half, and a single layer dotted."""
    rounds = {"sixth": 2, "one": 1}.get(layout.share, 0)
    return PLACE_COLORS[layout.arrangement if layout.matters else layout.share] + rounds * NUM_COLORS


def settled(lines: Sequence[Line]) -> float | None:
    """Where lines are cut off: the first point of each is far above all that matters."""
    second = [y for line in lines if len(line.points) > 2 and (y := line.points[1][1]) is not None]
    return max(second) if second else None


def layout_table(
    results: Results, layouts: Sequence[Layout], measure: Measure, paper: dict[Layout, str], *, title: str
) -> list[Table]:
    rows = [row for layout in layouts if (row := _row(results, layout, measure, paper))]
    headers = ["long-range layers", measure.unit, "against all", "seeds", f"paper's {measure.unit}"]
    caption = "Test set. The paper's numbers are for its own corpus and size; '-' where it only has a picture."
    return [Table(title=title, headers=headers, rows=rows, caption=caption)] if rows else []


def _row(results: Results, layout: Layout, measure: Measure, paper: dict[Layout, str]) -> list[str]:
    found = find(results, layout)
    if not found:
        return []
    values = [measure.of(result) for result in found]
    pair = Pair.of(results, layout, ALL, measure)
    against = f"{pair.difference:+.{measure.digits}f}" if pair.first else ""
    return [found[0].labels["plan"], measure.text(values), against, str(len(values)), paper.get(layout, "-")]
