"""Why Transformer-XL's encoding fails ahead (Figure 7, Appendix B): the odd part of a score's variance.

Appendix B takes a random vector x whose d elements have variance s and covariance c, and the encoding R of a distance:
sines and cosines of d / 2 frequencies. With S and C the sums of the sines and of the cosines,

    Var(x.R) = (s - c) d / 2 + c (S + C)^2      all pairs of elements
             = s d / 2 + 2 c g                  Appendix B, g: sine times cosine, over pairs of different frequencies

The second leaves out the products of two sines, of two cosines and of one frequency's sine and cosine, so it can fall
below zero, which no variance does. Its use in the appendix is right: g is the odd part, up to the last of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Figure, Results, Table
from mnemo.papers.grid import Grid
from mnemo.papers.jobs import Place, job
from mnemo.papers.judge import Observed, Outcome, judge
from mnemo.papers.lamemo.models import PAPER
from mnemo.report.plots import Line, line_figure

DIM = 64
"""Of Figure 7."""
DIMS = (64, 128, 256, 512)
COVARIANCES = (0.1, 0.0)
REACH = 50
"""Distances of the figure, on both sides."""
STEEP = 0.1
"""Share by which the slope at zero may miss the paper's."""
APART = 1.5
"""How many times as large the variance must be on one side of zero as on the other."""
ALIKE = 0.1
"""Share by which variances of equal expectation may differ as measured."""
NEAR = 3
"""Distance at which g is largest."""


def frequencies(dim: int) -> Tensor:
    """The paper's: 10000^(-2k/d), k = 1 ... d/2."""
    return 10000.0 ** (-2 * torch.arange(1, dim // 2 + 1, dtype=torch.float64) / dim)


def encode(distances: Tensor, dim: int) -> Tensor:
    """R (N, d): sines, then cosines."""
    angle = torch.outer(distances, frequencies(dim))
    return torch.cat([angle.sin(), angle.cos()], 1)


def odd_part(distances: Tensor, dim: int) -> Tensor:
    """The paper's g: sums of sin(w_k x) cos(w_l x) over all k and l that differ."""
    sines, cosines = encode(distances, dim).chunk(2, 1)
    return sines.sum(1) * cosines.sum(1) - (sines * cosines).sum(1)


def variance(distances: Tensor, dim: int, covariance: float) -> Tensor:
    """Of x.R, where elements of x have variance 1."""
    return (1 - covariance) * dim / 2 + covariance * encode(distances, dim).sum(1) ** 2


def published_variance(distances: Tensor, dim: int, covariance: float) -> Tensor:
    return dim / 2 + 2 * covariance * odd_part(distances, dim)


def draw(count: int, dim: int, covariance: float, seed: int) -> Tensor:
    """Normal vectors x (count, d) whose elements have variance 1 and this covariance, which is not negative."""
    dice = torch.Generator().manual_seed(seed)
    own = torch.randn(count, dim, generator=dice, dtype=torch.float64)
    shared = torch.randn(count, 1, generator=dice, dtype=torch.float64)
    return math.sqrt(1 - covariance) * own + math.sqrt(covariance) * shared


@job("lamemo-odd-part")
def measure_odd_part(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    dim, reach = settings["dim"], settings["reach"]
    points = torch.linspace(-reach, reach, settings["points"], dtype=torch.float64)
    near = torch.tensor([1e-4], dtype=torch.float64)
    return {
        "points": list(zip(points.tolist(), odd_part(points, dim).tolist(), strict=True)),
        "slope": float(odd_part(near, dim) / near),
        "published_slope": dim / (2 * (10 ** (8 / dim) - 1)),
        "published_limit": dim**2 / (2 * math.log(10**8)),
    }


@job("lamemo-variance")
def measure_variance(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    dim, covariance, reach = settings["dim"], settings["covariance"], settings["reach"]
    distances = torch.arange(-reach, reach + 1, dtype=torch.float64)
    x = draw(settings["draws"], dim, covariance, settings["seed"])
    measured = {
        name: (x @ encode(at, dim).T).var(0) for name, at in {"signed": distances, "absolute": distances.abs()}.items()
    }
    return {
        "distances": distances.tolist(),
        "signed": measured["signed"].tolist(),
        "absolute": measured["absolute"].tolist(),
        "exact": variance(distances, dim, covariance).tolist(),
        "published": published_variance(distances, dim, covariance).tolist(),
    }


def cells(budget: Budget) -> list[Cell]:
    reach, draws = (5, 2000) if budget == "self-test" else (REACH, 100_000)
    odd = [
        Cell(
            name=f"g-{dim}",
            job="lamemo-odd-part",
            settings={"dim": dim, "reach": reach, "points": 8 * reach + 1 if dim == DIM else 3},
            labels={"kind": "g", "dim": dim},
        )
        for dim in DIMS
    ]
    return odd + [
        Cell(
            name=f"variance-{covariance}",
            job="lamemo-variance",
            settings={"dim": DIM, "covariance": covariance, "reach": reach, "draws": draws, "seed": 0},
            labels={"kind": "variance", "covariance": covariance},
        )
        for covariance in COVARIANCES
    ]


def _at(result: CellResult, name: str, distance: int) -> float:
    return dict(zip(result.values["distances"], result.values[name], strict=True))[float(distance)]


def computed(results: Results, name: str) -> CellResult | None:
    found = results.one(name)
    return found if found is not None and found.values else None


def _steep(results: Results) -> Outcome | None:
    odd = computed(results, f"g-{DIM}")
    if odd is None:
        return None
    points = dict(odd.values["points"])
    is_odd = all(math.isclose(value, -points[-x], abs_tol=1e-6) for x, value in points.items() if -x in points)
    slope = odd.values["slope"]
    near = abs(slope / odd.values["published_slope"] - 1) <= STEEP
    return Outcome(f"slope {slope:.1f}; {'odd' if is_odd else 'not odd'}", is_odd and near)


def of_variance(observe: Callable[[CellResult], Outcome]) -> Callable[[Results], Outcome | None]:
    """An observation of the variances, None while they are not computed."""

    def check(results: Results) -> Outcome | None:
        found = computed(results, f"variance-{COVARIANCES[0]}")
        return None if found is None else observe(found)

    return check


def _two_sides(found: CellResult) -> Outcome:
    right, left = _at(found, "signed", NEAR), _at(found, "signed", -NEAR)
    ours = f"{right:.1f} at distance {NEAR}, {left:.1f} at -{NEAR} (covariance {found.labels['covariance']})"
    return Outcome(ours, right / left >= APART)


def _disentangled(found: CellResult) -> Outcome:
    right, left = _at(found, "absolute", NEAR), _at(found, "absolute", -NEAR)
    ours = f"{right:.1f} at distance {NEAR}, {left:.1f} at -{NEAR}"
    return Outcome(ours, math.isclose(right, left, rel_tol=1e-9))


def _formula(found: CellResult) -> Outcome:
    ours = (
        f"at distance -{NEAR} the formula gives {_at(found, 'published', -NEAR):.1f}, measured are "
        f"{_at(found, 'signed', -NEAR):.1f}; with the products of two sines or two cosines, which it leaves out, it "
        f"would give {_at(found, 'exact', -NEAR):.1f}"
    )
    pairs = zip(found.values["signed"], found.values["published"], strict=True)
    return Outcome(ours, all(abs(a - b) <= ALIKE * a for a, b in pairs))


CLAIMS = (
    Observed(
        f"At d = {DIM}, g(x) is odd and steep at zero: its slope is d / (2 (10^(8/d) - 1)).",
        f"slope {DIM / (2 * (10 ** (8 / DIM) - 1)):.1f}",
        _steep,
    ),
    Observed(
        f"With Transformer-XL's encoding, the variance of x.R jumps between the sides of zero (by {APART} or more).",
        "a huge gap between g(x) and g(-x); no number",
        of_variance(_two_sides),
    ),
    Observed(
        "With the distance's absolute value in R, both sides have the same variance.",
        "by construction",
        of_variance(_disentangled),
    ),
    Observed(
        f"Appendix B's formula, Var(x.R) = s d/2 + 2 c g, gives the measured variance, to {ALIKE:.0%}.",
        "derived, not measured",
        of_variance(_formula),
    ),
)


def figures(results: Results) -> list[Figure]:
    found = []
    odd = computed(results, f"g-{DIM}")
    if odd is not None:
        line = Line(f"g, d = {DIM}", [(float(x), float(y)) for x, y in odd.values["points"]])
        caption = "Sine times cosine, summed over all pairs of different frequencies: odd, and steep at zero."
        found.append(line_figure("g", "g(x) (Figure 7)", caption, [line], x_label="x", y_label="g(x)"))
    return found + [_variances(each) for each in results.select(kind="variance") if each.values]


def _variances(result: CellResult) -> Figure:
    names = {
        "signed": "measured, signed distances (Transformer-XL)",
        "absolute": "measured, absolute distances (LaMemo)",
        "exact": "all pairs of elements",
        "published": "Appendix B",
    }
    at, covariance = result.values["distances"], result.labels["covariance"]
    lines = [Line(label, list(zip(at, result.values[name], strict=True))) for name, label in names.items()]
    caption = f"Elements of x have variance 1 and covariance {covariance}; d = {DIM}."
    slug = "variance-" + str(covariance).replace(".", "-")
    return line_figure(
        slug, f"Variance of x.R, covariance {covariance}", caption, lines, x_label="distance i - j", y_label="variance"
    )


def tables(results: Results) -> list[Table]:
    rows = [
        (
            result.labels["dim"],
            f"{result.values['slope']:.1f}",
            f"{result.values['published_slope']:.1f}",
            f"{result.values['published_limit']:.1f}",
        )
        for result in results.select(kind="g")
        if result.values
    ]
    caption = "The slope grows like the square of d, as the paper says."
    headers = ("d", "slope of g at 0", "d / (2 (10^(8/d) - 1)), the paper's", "d^2 / (2 ln 10^8), its limit")
    return [Table("How steep g is at zero", headers, rows, caption)] if rows else []


ENCODING = Experiment(
    name="lamemo-encoding",
    title="Why Transformer-XL's encoding fails ahead",
    paper=PAPER,
    covers=("Figure 7", "Appendix B"),
    claim="The variance of a random vector times Transformer-XL's encoding jumps where the distance changes its "
    "sign; an encoding of absolute distances, with a bias for each direction, does not.",
    cells=cells,
    verdicts=lambda results: judge(Grid(), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        "Computed, not trained: the same at every budget but for the number of random vectors.",
        "Appendix B's formula leaves out pairs of two sines and of two cosines. The jump at zero that it is about is "
        "real, but the variance itself is another, and positive.",
        "With a covariance of 0 there is no jump: whether x has any is a question about trained models.",
    ),
)
