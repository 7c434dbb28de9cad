"""The kinds of chart that a report draws: lines, bars, and the memory of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mnemo.report import svg
from mnemo.report.scales import Axis, doubling, linear, logarithmic, number, plain, tick_labels

Point = tuple[float, float]
HEIGHT = 270.0
MOST_MARKERS, MOST_POINTS = 40, 600
"""Marked points of a series: of a line, and where there is no line."""
MAX_POINTS = 240
"""Longer lines are averaged down to about this many points; the numbers next to the page keep all."""


@dataclass(frozen=True)
class Series:
    label: str
    points: Sequence[Point]
    color: int
    faint: bool = False
    """A thin line without markers, drawn behind the others and left out of the legend."""
    band: Sequence[Point] = ()
    """Lower and upper edge around every point, or nothing."""


@dataclass(frozen=True)
class LineChart:
    series: Sequence[Series]
    x_label: str
    y_label: str
    x_kind: Literal["linear", "doubling"] = "linear"
    reference: tuple[str, float] | None = None
    """A labelled level to compare with."""
    y_max: float | None = None
    """Lines are cut off above this."""
    y_logarithmic: bool = False
    markers: bool = True
    joined: bool = True
    """Whether the points of a series are one line."""
    x_from_zero: bool = True
    """Whether a linear axis of x begins at 0."""
    single_named: bool = False
    """Whether a series that is alone has a legend too."""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float | None
    """None: there is no bar, only its name and what is shown."""
    color: int
    shown: str
    tip: str = ""


@dataclass(frozen=True)
class LayerMemory:
    kind: str
    """Name of its mechanism."""
    length: int
    long: bool


def draw_lines(chart: LineChart, slug: str, title: str, description: str) -> str:
    entries = [svg.LegendEntry(s.label, s.color, chart.markers, chart.joined) for s in chart.series if not s.faint]
    named = len(entries) > 1 or chart.single_named
    key, top = svg.legend(entries if named else [], 46, svg.WIDTH - 58)
    margins = svg.Margins(top + 18, 14, 40, 46)
    height = HEIGHT + top
    x, y = _axes(chart, margins, height)
    clip = f"{slug}-clip"
    body = [
        _clip(clip, margins, height),
        key,
        _frame(chart, x, y, margins, height),
        svg.element("g", "".join([*_bands(chart, x, y), *_lines(chart, x, y)]), clip_path=f"url(#{clip})"),
        "".join(_markers(chart, x, y)),
        _reference(chart, x, y),
    ]
    return svg.drawing(slug, title, description, "".join(body), height)


def _axes(chart: LineChart, margins: svg.Margins, height: float) -> tuple[Axis, Axis]:
    xs = [point[0] for series in chart.series for point in series.points]
    ys = [point[1] for series in chart.series for point in series.points]
    ys += [edge for series in chart.series for edges in series.band for edge in edges]
    if chart.y_max is not None:
        ys = [min(value, chart.y_max) for value in ys]
    if chart.reference:
        ys.append(chart.reference[1])
    left, right = margins.left, svg.WIDTH - margins.right
    x = doubling(xs, left + 6, right - 8) if chart.x_kind == "doubling" else _plain(chart, xs, left, right)
    make = logarithmic if chart.y_logarithmic and min(ys) > 0 else linear
    return x, make(ys, height - margins.bottom, margins.top)


def _plain(chart: LineChart, xs: Sequence[float], left: float, right: float) -> Axis:
    if not chart.x_from_zero:
        axis = linear(xs, left + 6, right - 8, count=6)
        whole = tuple(tick for tick in axis.ticks if float(tick).is_integer())
        return replace(axis, ticks=whole) if whole and all(float(x).is_integer() for x in xs) else axis
    axis = linear([0.0, *xs], left, right, zero=True, count=6)
    return axis if max(xs) > 0 else linear([0.0, 1.0], left, right, zero=True)


def _clip(name: str, margins: svg.Margins, height: float) -> str:
    area = svg.box(
        margins.left, margins.top - 2, svg.WIDTH - margins.left, height - margins.top - margins.bottom + 4, ""
    )
    return svg.element("clipPath", area, id=name)


def _frame(chart: LineChart, x: Axis, y: Axis, margins: svg.Margins, height: float) -> str:
    bottom, right = height - margins.bottom, svg.WIDTH - margins.right
    parts = []
    for tick, label in zip(y.ticks, tick_labels(y.ticks), strict=True):
        at = y.place(tick)
        parts += [
            svg.line(margins.left, at, right, at, "grid"),
            svg.text(margins.left - 7, at + 4, label, "tick", "end"),
        ]
    for tick, label in zip(x.ticks, tick_labels(x.ticks), strict=True):
        at = min(x.place(tick), svg.WIDTH - 2 - len(label) * svg.WIDE_CHAR / 2)  # a long one would be cut off
        parts.append(svg.text(at, bottom + 17, label, "tick", "middle"))
    parts += [
        svg.line(margins.left, bottom, right, bottom, "base"),
        svg.text((margins.left + right) / 2, height - 6, chart.x_label, "axis", "middle"),
        svg.text(4, margins.top - 9, chart.y_label, "axis"),
    ]
    return "".join(parts)


def _reference(chart: LineChart, x: Axis, y: Axis) -> str:
    if chart.reference is None:
        return ""
    label, level = chart.reference
    at, end = y.place(level), svg.WIDTH - 14.0
    words_x, words_y, anchor = _free_corner(chart, x, y, at, len(label) * svg.WIDE_CHAR)
    drawn = svg.line(x.start, at, end, at, "reference")
    return drawn + svg.text(words_x, words_y, label, "tick halo", anchor)


def _free_corner(chart: LineChart, x: Axis, y: Axis, at: float, width: float) -> tuple[float, float, str]:
    """Where words at either end of a level, below or above it, meet the fewest of the lines."""
    taken = [place for series in chart.series for place in _along(_placed(series, x, y))]
    end = svg.WIDTH - 16.0
    corners = [
        (end, at + 15, "end"),
        (end, at - 6, "end"),
        (x.start + 4, at + 15, "start"),
        (x.start + 4, at - 6, "start"),
    ]
    inside = [corner for corner in corners if y.end + 8 <= corner[1] <= y.start - 2] or corners[1:2]

    def met(corner: tuple[float, float, str]) -> int:
        left = corner[0] - width if corner[2] == "end" else corner[0]
        return sum(left <= a <= left + width and corner[1] - 13 <= b <= corner[1] + 4 for a, b in taken)

    return min(inside, key=met)


def _along(points: Sequence[Point], parts: int = 8) -> list[Point]:
    """The points, and some on the way from each to the next."""
    pairs = zip(points, points[1:], strict=False)
    between = [
        (a[0] + (b[0] - a[0]) * part / parts, a[1] + (b[1] - a[1]) * part / parts)
        for a, b in pairs
        for part in range(1, parts)
    ]
    return [*points, *between]


def _lines(chart: LineChart, x: Axis, y: Axis) -> list[str]:
    behind_first = sorted(chart.series, key=lambda series: not series.faint)
    return [
        svg.path(_placed(series, x, y), _line_class(series))
        for series in behind_first
        if chart.joined and len(series.points) > 1
    ]


def _bands(chart: LineChart, x: Axis, y: Axis) -> list[str]:
    """Between the edges of every series that has them; nothing where both are the line itself."""
    wide = [series for series in chart.series if len(series.points) > 1 and any(a < b for a, b in series.band)]
    return [svg.area(_edges(series, x, y), f"band {svg.color_class(series.color)}") for series in wide]


def _edges(series: Series, x: Axis, y: Axis) -> list[Point]:
    xs = [point[0] for point in series.points]
    low, high = (
        thinned([(a, edges[side]) for a, edges in zip(xs, series.band, strict=True)], MAX_POINTS) for side in (0, 1)
    )
    return [(x.place(a), y.place(b)) for a, b in [*high, *reversed(low)]]


def _placed(series: Series, x: Axis, y: Axis) -> list[Point]:
    return [(x.place(a), y.place(b)) for a, b in thinned(series.points, MAX_POINTS)]


def _line_class(series: Series) -> str:
    names = ["series", svg.color_class(series.color), svg.dash_class(series.color)]
    return " ".join([*names, "faint"] if series.faint else names)


def _markers(chart: LineChart, x: Axis, y: Axis) -> list[str]:
    drawn = []
    for series in chart.series if chart.markers else ():
        visible = [point for point in series.points if chart.y_max is None or point[1] <= chart.y_max]
        for a, b in [] if series.faint else _every(visible, MOST_MARKERS if chart.joined else MOST_POINTS):
            tip = f"{series.label}: {number(b)} at {chart.x_label} {plain(a)}"
            drawn.append(svg.marker(x.place(a), y.place(b), series.color, tip))
    return drawn


def _every(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most about that many of the points, the last one always among them."""
    stride = -(-len(points) // most) or 1
    return points[::-1][::stride]


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Means of neighbours where there are more points than a line can show."""
    size = -(-len(points) // most)
    if size <= 1:
        return points
    groups = [points[begin : begin + size] for begin in range(0, len(points), size)]
    return [(sum(p[0] for p in group) / len(group), sum(p[1] for p in group) / len(group)) for group in groups]


def draw_bars(bars: Sequence[Bar], slug: str, title: str, description: str) -> str:
    """Horizontal bars from 0, each with its name above and its value at the end."""
    thick = 24.0 if len(bars) <= 4 else 14.0
    row, right = thick + 30, svg.WIDTH - 4.0
    room = max(len(bar.shown) for bar in bars) * svg.CHAR_WIDTH * 1.15 + 14
    reach = _bar_axis(bars, right - room)
    body = []
    for index, bar in enumerate(bars):
        y = index * row
        begin, end = sorted((reach.place(0.0), reach.place(bar.value or 0.0)))
        end = max(begin + 2, end)
        body.append(svg.text(0, y + 14, svg.fit(bar.label, right)))
        if bar.value is not None:
            css = f"fill {svg.color_class(bar.color)}"
            body.append(svg.box(begin, y + 20, end - begin, thick, css, bar.tip, radius=3))
        body.append(svg.text(end + 8, y + 24.5 + thick / 2, bar.shown, "value"))
    return svg.drawing(slug, title, description, "".join(body), len(bars) * row + 2)


def _bar_axis(bars: Sequence[Bar], end: float) -> Axis:
    values = [0.0, *(bar.value for bar in bars if bar.value is not None)]
    low, high = min(values), max(values)
    return Axis(low, high if high > low else low + 1, 0.0, end, ())


def draw_plan(layers: Sequence[LayerMemory], segment: int, color: int, slug: str, title: str, description: str) -> str:
    """Every layer's memory to the left of the segment, the top layer at the top, all to scale."""
    row = 24.0 if len(layers) <= 8 else 17.0
    left, right = 54.0, svg.WIDTH - 8.0
    longest = max((layer.length for layer in layers), default=0)
    reach = Axis(-float(longest), float(segment), left, right, ())
    body = [svg.text(left, 12, "older", "tick"), svg.text(right, 12, "newest token", "tick", "end")]
    for index, layer in enumerate(reversed(layers)):
        body.append(_layer_row(layer, len(layers) - index, 20 + index * row, row, reach, color, segment))
    bottom = 20 + len(layers) * row
    body.append(_plan_axis(reach, bottom, longest, segment))
    return svg.drawing(slug, title, description, "".join(body), bottom + 38)


def _layer_row(layer: LayerMemory, position: int, y: float, row: float, reach: Axis, color: int, segment: int) -> str:
    height = row - 5
    now, begin = reach.place(0), reach.place(-layer.length)
    kind = "long range" if layer.long else "short range"
    css = f"fill {svg.color_class(color)}" + ("" if layer.long else " short")
    parts = [svg.text(reach.start - 8, y + height / 2 + 4, f"layer {position}", "tick", "end")]
    if layer.length:
        parts.append(
            svg.box(begin, y, now - begin - 1, height, css, f"layer {position}: {layer.kind} {layer.length}, {kind}")
        )
    parts.append(svg.box(now + 1, y, reach.end - now - 1, height, "segment", f"the segment: {segment} tokens"))
    return "".join(parts)


def _plan_axis(reach: Axis, y: float, longest: int, segment: int) -> str:
    middle = (reach.place(0) + reach.end) / 2
    parts = [
        svg.text(middle, y + 14, "segment", "tick", "middle"),
        svg.text(middle, y + 30, f"{segment:,}", "tick", "middle"),
    ]
    if longest:
        middle = (reach.start + reach.place(0)) / 2
        parts += [
            svg.text(middle, y + 14, "memory", "tick", "middle"),
            svg.text(middle, y + 30, f"{longest:,}", "tick", "middle"),
        ]
    return "".join(parts)
