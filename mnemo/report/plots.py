"""Figures from plain numbers: lines with bands, bars, heat maps, memory plans.

Values that are None or not finite are left out of the picture and are empty in the figure's table of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

from mnemo.report import charts
from mnemo.report.charts import Bar, LayerMemory, LineChart, Series
from mnemo.report.figure import Figure, Numbers
from mnemo.report.files import is_number
from mnemo.report.heat_map import HeatMap, draw_heat
from mnemo.report.number_text import number, plain
from mnemo.report.svg import Drawing, for_page, slugify

Value = float | None


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, Value]]
    """(x, y)"""
    low: Sequence[Value] | None = None
    """Lower edge of a band around the line, one value for each point."""
    high: Sequence[Value] | None = None
    color: int | None = None
    """Number of its colour, marker and dashes; by default its position among the lines."""
    faint: bool = False
    """A thin line without markers, below the others; neither in the legend nor in the description."""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"line '{self.label}': a band needs both its edges")
        for edge in (self.low, self.high):
            if edge is not None and len(edge) != len(self.points):
                raise ValueError(f"line '{self.label}': {len(self.points)} points but {len(edge)} values of an edge")


def line_figure(
    slug: str,
    title: str,
    caption: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    x_kind: Literal["linear", "doubling"] = "linear",
    y_logarithmic: bool = False,
    reference: tuple[str, float] | None = None,
    y_max: float | None = None,
    x_from_least: bool = False,
) -> Figure:
    """Lines over a common x, with bands for those that have one, and a labelled level to compare with.

    `x_from_least`: the x axis begins at the smallest x instead of 0, for counts that cannot be 0.
    """
    series = [_series(line, at if line.color is None else line.color) for at, line in enumerate(lines)]
    series = [one for one in series if len(one.points)]
    xs = [x for one in series for x in one.points[:, 0]]
    chart = LineChart(
        series,
        x_label,
        y_label,
        x_kind="doubling" if x_kind == "doubling" and min(xs, default=0) >= 0 else "linear",
        reference=reference,
        y_max=y_max,
        y_logarithmic=y_logarithmic,
        markers=any(len(one.points) <= 60 for one in series),
        x_from_zero=not x_from_least and _begins_near_zero(xs),
    )
    sentences = [_line_words(one, x_label) for one in series if not one.faint]
    description = " ".join([f"{y_label} against {x_label}.", *sentences])
    drawing = charts.draw_lines(chart) if series else None
    return make_figure(slug, title, caption, description, drawing, _line_numbers(lines, x_label, y_label))


def _series(line: Line, color: int) -> Series:
    """The points of a line that have numbers; a missing edge of its band lies on the line."""
    points = _pairs(line.points)
    kept = np.isfinite(points).all(1)
    if line.low is None or line.high is None:
        return Series(line.label, points[kept], color, line.faint)
    edges = _pairs(zip(line.low, line.high, strict=True))
    band = np.where(np.isfinite(edges), edges, points[:, 1:])
    return Series(line.label, points[kept], color, line.faint, band[kept])


def _pairs(values: Iterable[tuple[Value, Value]]) -> np.ndarray:
    """(N, 2), with NaN for values that are no numbers."""
    return np.array([[_kept(value) for value in pair] for pair in values], dtype=float).reshape(-1, 2)


def _begins_near_zero(xs: Sequence[float]) -> bool:
    return not xs or 0 <= min(xs) <= 0.5 * max(xs)


def _line_words(series: Series, x_label: str) -> str:
    (first_x, first), (last_x, last) = series.points[0], series.points[-1]
    if len(series.points) == 1:
        return f"{series.label}: {number(first)} at {x_label} {plain(first_x)}."
    return (
        f"{series.label} goes from {number(first)} at {x_label} {plain(first_x)} to {number(last)} at {plain(last_x)}."
    )


def _line_numbers(lines: Sequence[Line], x_label: str, y_label: str) -> Numbers:
    banded = any(line.low is not None for line in lines)
    rows = []
    for line in lines:
        nothing: list[Value] = [None] * len(line.points)
        for (x, y), low, high in zip(line.points, line.low or nothing, line.high or nothing, strict=True):
            rows.append((line.label, x, _kept(y), *((_kept(low), _kept(high)) if banded else ())))
    edges = ("lowest", "highest") if banded else ()
    return Numbers(("line", x_label, y_label, *edges), tuple(rows))


def _kept(value: object) -> float | int | None:
    return value if is_number(value) else None


def bar_figure(
    slug: str,
    title: str,
    caption: str,
    bars: Sequence[tuple[str, Value]],
    *,
    unit: str,
    colors: Sequence[int] | None = None,
    shown: Callable[[float], str] | None = None,
) -> Figure:
    """Horizontal bars from 0; a bar without a value keeps its row and says so.

    `shown`: text of a value; by default its digits and the unit.
    """
    text = shown or (lambda value: f"{_measured(value)} {unit}".strip())
    drawn = [
        Bar(label, _kept(value), color, text(value) if is_number(value) else "no value")
        for (label, value), color in zip(bars, colors or range(len(bars)), strict=True)
    ]
    description = f"In {unit}: " + ", ".join(f"{bar.label}: {bar.shown}" for bar in drawn) + "."
    numbers = Numbers(("name", unit), tuple((bar.label, bar.value) for bar in drawn))
    return make_figure(slug, title, caption, description, charts.draw_bars(drawn) if drawn else None, numbers)


def _measured(value: float) -> str:
    return number(value) if value == 0 or abs(value) >= 0.1 else plain(value)


def heat_figure(
    slug: str,
    title: str,
    caption: str,
    grid: Sequence[Sequence[Value]],
    *,
    x_label: str,
    y_label: str,
    row_labels: Sequence[object] | None = None,
    column_labels: Sequence[object] | None = None,
    logarithmic: bool = False,
    marked: frozenset[int] = frozenset(),
) -> Figure:
    """Values as shades, first row at the top; rows in `marked` are outlined. By default labels count from 1."""
    width = max((len(row) for row in grid), default=0)
    cells = [[_kept(value) for value in (*row, *[None] * (width - len(row)))] for row in grid]
    rows, columns = _labels(row_labels, len(cells), "rows"), _labels(column_labels, width, "columns")
    numbers = Numbers(
        (f"{y_label} / {x_label}", *columns), tuple((label, *row) for label, row in zip(rows, cells, strict=True))
    )
    size = f"{len(cells)} rows ({y_label}) and {width} columns ({x_label})."
    if not width:
        return make_figure(slug, title, caption, size, None, numbers)
    outlined = marked & set(range(len(cells)))
    chart = HeatMap(np.array(cells, dtype=float), x_label, y_label, rows, columns, logarithmic, outlined)
    return make_figure(slug, title, caption, f"{size}{_heat_words(chart)}", draw_heat(chart), numbers)


def _labels(given: Sequence[object] | None, count: int, what: str) -> list[str]:
    if given is None:
        return [str(at) for at in range(1, count + 1)]
    if len(given) != count:
        raise ValueError(f"a heat map of {count} {what} has {len(given)} labels of {what}")
    return [str(label) for label in given]


def _heat_words(chart: HeatMap) -> str:
    if not np.isfinite(chart.grid).any():
        return ""
    ends = []
    for place in (np.nanargmin(chart.grid), np.nanargmax(chart.grid)):
        row, column = divmod(int(place), chart.grid.shape[1])
        ends.append(f"{plain(chart.grid[row, column])} ({chart.row_labels[row]}, {chart.column_labels[column]})")
    outlined = ", ".join(chart.row_labels[row] for row in sorted(chart.marked))
    return f" From {ends[0]} to {ends[1]}." + (f" Outlined: {outlined}." if outlined else "")


def arrangement_figure(slug: str, title: str, caption: str, plans: Mapping[str, Sequence[int]], segment: int) -> Figure:
    """Every plan's memory lengths, first layer first, to the left of the segment."""
    sentences = [f"{label}: {', '.join(map(str, lengths))}." for label, lengths in plans.items()]
    description = f"Segment of {segment:,} tokens. Memory by layer, first layer first. {' '.join(sentences)}"
    rows = [(label, layer, length) for label, lengths in plans.items() for layer, length in enumerate(lengths, 1)]
    longest = max((length for _, _, length in rows), default=0)
    layers = {label: [LayerMemory("", each, 2 * each >= longest) for each in plan] for label, plan in plans.items()}
    drawing = charts.draw_plans(layers, segment) if rows else None
    return make_figure(slug, title, caption, description, drawing, Numbers(("plan", "layer", "memory"), tuple(rows)))


def lines_over_seeds(results: Iterable[tuple[str, float, Value]]) -> list[Line]:
    """From (label, x, y) of single runs: means over equal label and x, with a band from smallest to largest."""
    found: dict[str, dict[float, list[float]]] = {}
    for label, x, y in results:
        values = found.setdefault(label, {}).setdefault(x, [])
        if is_number(y):
            values.append(float(y))
    return [_mean_line(label, {x: ys for x, ys in by_x.items() if ys}) for label, by_x in found.items()]


def _mean_line(label: str, by_x: Mapping[float, Sequence[float]]) -> Line:
    xs = sorted(by_x)
    points = [(x, fmean(by_x[x])) for x in xs]
    if all(len(by_x[x]) == 1 for x in xs):
        return Line(label, points)
    return Line(label, points, [min(by_x[x]) for x in xs], [max(by_x[x]) for x in xs])


def make_figure(
    slug: str, title: str, caption: str, description: str, drawing: Drawing | None, numbers: Numbers
) -> Figure:
    """The figure, or one that says that there is nothing to show if `drawing` is None."""
    slug, drawing = slugify(slug), drawing or charts.draw_nothing()
    return Figure(slug, title, caption, description, for_page(drawing, slug, title, description), numbers)
