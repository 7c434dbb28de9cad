"""How numbers of several runs are said, compared and drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from mnemo.papers.claims import Claim
from mnemo.papers.experiment import Results, Verdict, look_up
from mnemo.papers.rmt.published import Quoted
from mnemo.report.plots import Line, lines_over_seeds

SOLVED = 0.99
"""Accuracy of a task that counts as solved."""
FAR = 0.1
"""Accuracy that is far below another one: the mean is lower by so much, and no run reaches any of the others."""
SEEDS = {"smoke": 1, "small": 2, "paper": 3}
"""Runs that a comparison needs."""
NOT_RUN = "not run at this budget"
FEW_STEPS = "; two steps of training decide nothing"


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean, deviation and number of runs."""
    if not values:
        return "no runs"
    runs = f"{len(values)} run{'s' if len(values) > 1 else ''}"
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation} ({runs})"


def compared(parts: Mapping[str, Sequence[float]], digits: int = 3) -> str:
    return ", ".join(f"{name} {spread(values, digits)}" for name, values in parts.items())


def judged(
    results: Results,
    claim: str,
    paper: str,
    runs: Mapping[str, Sequence[float]],
    holds: Callable[..., bool],
    *,
    wanted: int | None = None,
    digits: int = 3,
    decides: Callable[..., bool] | None = None,
    undecided: str = "",
    margin: float = 0.0,
) -> Verdict:
    """A verdict on runs by name; open where a name has fewer than `wanted` of them, and at `smoke`.

    `wanted` is 0 where this budget has no such runs. `margin`: single runs whose values are closer than that decide
    nothing.

    `holds`: a function of the lists of values, in the order of `runs`. `decides`, likewise: whether such values can
    tell anything; `undecided` says why not.
    """
    stated, ours = Claim(claim, paper), compared(runs, digits)
    wanted = SEEDS[results.budget] if wanted is None else wanted
    if not wanted:
        return stated.open(NOT_RUN)
    lacking = [f"{name} has {len(values)} of {wanted}" for name, values in runs.items() if len(values) < wanted]
    if lacking:
        return stated.open(f"{ours}; runs are missing: {', '.join(lacking)}")
    if results.budget == "smoke":
        return stated.open(f"{ours}{FEW_STEPS}")
    if decides is not None and not decides(*runs.values()):
        return stated.open(f"{ours}; {undecided}")
    if is_close_call(list(runs.values()), margin):
        return stated.open(f"{ours}; {one_seed(margin)}")
    return stated.judged(results, ours, bool(holds(*runs.values())), smoke=FEW_STEPS)


def is_close_call(runs: Sequence[Sequence[float]], margin: float) -> bool:
    """Whether a model has a single run and means lie closer together than `margin`."""
    means = [fmean(values) for values in runs]
    return min(map(len, runs)) == 1 and max(means) - min(means) < margin


def one_seed(margin: float) -> str:
    return f"one seed, and closer than {margin}: another seed may say otherwise"


def is_solved(values: Sequence[float]) -> bool:
    return min(values) >= SOLVED


def is_far_below(low: Sequence[float], high: Sequence[float]) -> bool:
    return fmean(high) - fmean(low) >= FAR and max(low) < min(high)


def measured_lines(results: Results, key: str, line: str, x: str, order: Sequence[str]) -> list[Line]:
    """A line for every value of one label over another, with a band over seeds."""
    found = [
        (each.labels[line], each.labels[x], value)
        for each in results.cells
        if line in each.labels and x in each.labels and isinstance(value := look_up(each.values, key), (int, float))
    ]
    found.sort(key=lambda one: (order.index(one[0]), one[1]))
    return [replace(drawn, color=order.index(drawn.label)) for drawn in lines_over_seeds(found)]


def quoted_lines(table: Mapping[tuple[str, int], Quoted], order: Sequence[str]) -> list[Line]:
    """Published accuracies as lines, with a band of a deviation where there is one."""
    lines = []
    for name in order:
        points = sorted((x, quoted) for (model, x), quoted in table.items() if model == name)
        if points:
            low, high = ([_edge(quoted, sign) for _, quoted in points] for sign in (-1, 1))
            means = [(float(x), quoted.mean) for x, quoted in points]
            lines.append(Line(name, means, low, high, color=order.index(name)))
    return lines


def _edge(quoted: Quoted, sign: int) -> float:
    """No accuracy lies beyond 0 or 1, whatever the deviation."""
    return min(1.0, max(0.0, quoted.mean + sign * (quoted.deviation or 0.0)))


def said(quoted: Quoted | None) -> str:
    return "not reported" if quoted is None else str(quoted)


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
