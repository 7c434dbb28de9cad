"""Figures from plain numbers: lines with bands, bars, heat maps, arrangements of memory, points.

Values that are missing (None) or no numbers are left out of a picture and are empty in its table of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from mnemo.report import svg
from mnemo.report.arrangements import draw_arrangements
from mnemo.report.charts import Bar, LineChart, Point, Series, draw_bars, draw_lines
from mnemo.report.content import Figure, Numbers
from mnemo.report.files import is_number
from mnemo.report.heat import HeatMap, draw_heat
from mnemo.report.scales import number, plain

Value = float | None


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, Value]]
    """(x, y)"""
    low: Sequence[Value] | None = None
    """Lower edge of a band around the line, beside `points`."""
    high: Sequence[Value] | None = None
    color: int | None = None
    """Number of its colour, marker and dashes; its place among the lines when left out."""

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
    """Lines over a common x, each with its band where it has one, and a labelled level to compare with.

    `x_from_least`: for counts that cannot be 0, the axis begins at the least of them, however near to 0.
    """
    series = [_series(line, at if line.color is None else line.color) for at, line in enumerate(lines)]
    series = [one for one in series if one.points]
    xs = [x for one in series for x, _ in one.points]
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
        single_named=True,
    )
    sentences = [_line_words(one, x_label) for one in series]
    description = " ".join([f"{y_label} against {x_label}.", *sentences])
    draw = _drawn(bool(series), lambda *names: draw_lines(chart, *names))
    return _figure(slug, title, caption, description, draw, _line_numbers(lines, x_label, y_label))


def _series(line: Line, color: int) -> Series:
    edges = list(zip(line.low, line.high, strict=True)) if line.low is not None and line.high is not None else []
    kept = [at for at, point in enumerate(line.points) if all(map(is_number, point))]
    points = [(float(x), float(y)) for x, y in (line.points[at] for at in kept) if y is not None]
    band = [_around(edges[at], points[i][1]) for i, at in enumerate(kept)] if edges else []
    return Series(line.label, points, color, band=band)


def _around(edges: tuple[Value, Value], y: float) -> Point:
    """An edge that is missing lies on the line."""
    low, high = (float(edge) if is_number(edge) else y for edge in edges)
    return low, high


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


def bar_figure(slug: str, title: str, caption: str, bars: Sequence[tuple[str, Value]], *, unit: str) -> Figure:
    """Horizontal bars from 0; a bar without a value keeps its place and says so."""
    drawn = [
        Bar(label, _kept(value), color, f"{_measured(value)} {unit}".strip() if is_number(value) else "no value")
        for color, (label, value) in enumerate(bars)
    ]
    description = f"In {unit}: " + ", ".join(f"{bar.label}: {bar.shown}" for bar in drawn) + "."
    draw = _drawn(bool(drawn), lambda *names: draw_bars(drawn, *names))
    numbers = Numbers(("name", unit), tuple((bar.label, bar.value) for bar in drawn))
    return _figure(slug, title, caption, description, draw, numbers)


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
    """Values as shades, first row at the top; rows in `marked` are outlined. Without labels, cells count from 1."""
    width = max((len(row) for row in grid), default=0)
    cells = [[_kept(value) for value in (*row, *[None] * (width - len(row)))] for row in grid]
    rows = _labels(row_labels, len(cells), "rows")
    columns = _labels(column_labels, width, "columns")
    chart = HeatMap(cells, x_label, y_label, rows, columns, logarithmic, marked & set(range(len(cells))))
    headers = (f"{y_label} / {x_label}", *columns)
    numbers = Numbers(headers, tuple((label, *row) for label, row in zip(rows, cells, strict=True)))
    draw = _drawn(width > 0, lambda *names: draw_heat(chart, *names))
    return _figure(slug, title, caption, _heat_words(chart), draw, numbers)


def _labels(given: Sequence[object] | None, count: int, what: str) -> list[str]:
    if given is None:
        return [str(at) for at in range(1, count + 1)]
    if len(given) != count:
        raise ValueError(f"a heat map of {count} {what} has {len(given)} labels of {what}")
    return [str(label) for label in given]


def _heat_words(chart: HeatMap) -> str:
    size = f"{len(chart.grid)} rows ({chart.y_label}) and {len(chart.column_labels)} columns ({chart.x_label})."
    found = [(value, r, c) for r, row in enumerate(chart.grid) for c, value in enumerate(row) if value is not None]
    if not found:
        return size
    (low, *at_low), (high, *at_high) = min(found), max(found)
    low_words, high_words = (f"{chart.row_labels[r]}, {chart.column_labels[c]}" for r, c in (at_low, at_high))
    outlined = ", ".join(chart.row_labels[row] for row in sorted(chart.marked))
    marked = f" Outlined: {outlined}." if outlined else ""
    return f"{size} From {plain(low)} ({low_words}) to {plain(high)} ({high_words}).{marked}"


def arrangement_figure(slug: str, title: str, caption: str, plans: Mapping[str, Sequence[int]], segment: int) -> Figure:
    """Every plan's memory lengths, first layer first, to the left of the segment."""
    sentences = [f"{label}: {', '.join(map(str, lengths))}." for label, lengths in plans.items()]
    description = f"Segment of {segment:,} tokens. Memory by layer, first layer first. {' '.join(sentences)}"
    rows = [(label, layer, length) for label, lengths in plans.items() for layer, length in enumerate(lengths, 1)]
    draw = _drawn(any(plans.values()), lambda *names: draw_arrangements(plans, segment, *names))
    return _figure(slug, title, caption, description, draw, Numbers(("plan", "layer", "memory"), tuple(rows)))


def scatter_figure(
    slug: str,
    title: str,
    caption: str,
    groups: Mapping[str, Sequence[tuple[Value, Value]]],
    *,
    x_label: str,
    y_label: str,
    colors: Mapping[str, int] | None = None,
) -> Figure:
    """Points without lines, a colour and shape for each group: in their order, or as `colors` numbers them."""
    numbered = dict(zip(groups, range(len(groups)), strict=True)) | dict(colors or {})
    series = [
        Series(label, [(float(x), float(y)) for x, y in points if is_number(x) and is_number(y)], numbered[label])
        for label, points in groups.items()
    ]
    series = [one for one in series if one.points]
    near_zero = _begins_near_zero([x for one in series for x, _ in one.points])
    chart = LineChart(series, x_label, y_label, joined=False, x_from_zero=near_zero, single_named=True)
    description = " ".join([f"{y_label} against {x_label}.", *map(_cloud_words, series)])
    rows = [(label, _kept(x), _kept(y)) for label, points in groups.items() for x, y in points]
    draw = _drawn(bool(series), lambda *names: draw_lines(chart, *names))
    return _figure(slug, title, caption, description, draw, Numbers(("group", x_label, y_label), tuple(rows)))


def _cloud_words(series: Series) -> str:
    xs, ys = zip(*series.points, strict=True)
    return (
        f"{series.label}: {len(xs)} points, x from {plain(min(xs))} to {plain(max(xs))}, "
        f"y from {number(min(ys))} to {number(max(ys))}."
    )


def lines_over_seeds(results: Iterable[tuple[str, float, Value]]) -> list[Line]:
    """From (label, x, y) of single runs: means over equal label and x, with a band from the least to the largest."""
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


Draw = Callable[[str, str, str], str]
"""From slug, title and description to SVG."""


def _drawn(anything: bool, draw: Draw) -> Draw:
    return draw if anything else _draw_nothing


def _draw_nothing(slug: str, title: str, description: str) -> str:
    words = svg.text(svg.WIDTH / 2, 34, "nothing measured yet", "axis", "middle")
    return svg.drawing(slug, title, description, words, 56)


def _figure(slug: str, title: str, caption: str, description: str, draw: Draw, numbers: Numbers) -> Figure:
    slug = svg.slugify(slug)
    return Figure(slug, title, caption, description, draw(slug, title, description), numbers)
