"""Heat maps: a grid of values as shades, with a key, for a few labelled cells as for thousands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mnemo.report import svg
from mnemo.report.scales import plain
from mnemo.report.style import NUM_SHADES

Cell = float | None
"""None: there is no value."""
MOST_CELLS = 128
"""Of a row or column; longer ones show the largest of neighbours. The numbers next to the page keep all."""
DECADES = 6
"""A logarithmic map tells values apart down to this many powers of ten below the largest."""
SEAM = 0.4
"""By how much cells overlap, so that no ground shows between them."""
MIDDLE_SHADE = 7
"""Words on it are black, since neither the ink nor the ground stands out; on further ones they have the ground's."""


@dataclass(frozen=True)
class HeatMap:
    grid: Sequence[Sequence[Cell]]
    """Rows of equal length, at least one cell."""
    x_label: str
    y_label: str
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    logarithmic: bool = False
    marked: frozenset[int] = frozenset()
    """Rows with an outline."""

    @cached_property
    def shades(self) -> Shades:
        return Shades.of((value for row in self.grid for value in row), self.logarithmic)


@dataclass(frozen=True)
class Shades:
    """The range of the values and what each looks like; `low` and `high` are equal where all values are."""

    low: float
    high: float
    logarithmic: bool
    cut: bool
    """Whether values below `low` look like it."""

    @staticmethod
    def of(cells: Iterable[Cell], logarithmic: bool) -> Shades:
        values = [value for value in cells if value is not None]
        positive = [value for value in values if value > 0]
        if not logarithmic or not positive:
            return Shades(min(values, default=0.0), max(values, default=0.0), False, False)
        high = max(positive)
        low = max(min(positive), high / 10**DECADES)
        return Shades(low, high, True, min(values) < low)

    def shade(self, value: float) -> int:
        if self.high <= self.low:
            return NUM_SHADES // 2 if value >= self.low else 0
        share = self._scaled(max(value, self.low)) - self._scaled(self.low)
        return min(int(share / (self._scaled(self.high) - self._scaled(self.low)) * NUM_SHADES), NUM_SHADES - 1)

    def at(self, share: float) -> float:
        """The value at that share of the range."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        mixed = low + share * (high - low)
        return math.exp(mixed) if self.logarithmic else mixed

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


class Layout(NamedTuple):
    left: float
    top: float
    width: float
    """Of a cell."""
    height: float
    num_rows: int
    num_columns: int

    @property
    def right(self) -> float:
        return self.left + self.width * self.num_columns

    @property
    def bottom(self) -> float:
        return self.top + self.height * self.num_rows


def draw_heat(chart: HeatMap, slug: str, title: str, description: str) -> str:
    shown = reduced(chart)
    layout = _layout(shown)
    labels_height = 22.0
    key_top = layout.bottom + labels_height + 24
    body = [
        _hatching(slug),
        svg.text(4, 12, shown.y_label, "axis"),
        *_cells(shown, layout, slug),
        *_row_labels(shown, layout),
        *_column_labels(shown, layout),
        svg.text((layout.left + layout.right) / 2, layout.bottom + labels_height + 10, shown.x_label, "axis", "middle"),
        *_outlines(shown, layout),
        _key(shown, key_top, slug),
    ]
    return svg.drawing(slug, title, description, "".join(body), key_top + 40)


def reduced(chart: HeatMap) -> HeatMap:
    """The same map with at most so many rows and columns, each the largest of its neighbours."""
    rows = _groups(len(chart.grid))
    columns = _groups(len(chart.column_labels))
    grid = [[_largest(chart.grid[r][c] for r in group for c in across) for across in columns] for group in rows]
    return HeatMap(
        grid,
        chart.x_label,
        chart.y_label,
        [chart.row_labels[group[0]] for group in rows],
        [chart.column_labels[group[0]] for group in columns],
        chart.logarithmic,
        frozenset(at for at, group in enumerate(rows) if chart.marked & set(group)),
    )


def _groups(count: int) -> list[range]:
    size = -(-count // MOST_CELLS)
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _largest(cells: Iterable[Cell]) -> Cell:
    return max((value for value in cells if value is not None), default=None)


def _layout(chart: HeatMap) -> Layout:
    num_rows, num_columns = len(chart.grid), len(chart.column_labels)
    left = min(150.0, 16 + max(len(label) for label in chart.row_labels) * svg.WIDE_CHAR)
    width = min((svg.WIDTH - left - 14) / num_columns, 64.0)
    height = min(max(width, 20.0), 30.0) if num_rows <= 16 else min(max(width, 320 / num_rows), 20.0)
    return Layout(left, 22.0, width, height, num_rows, num_columns)


def _hatching(slug: str) -> str:
    """Of cells without a value, so that they look like none of the shades."""
    stripe = svg.line(0, 6, 6, 0, "absent")
    return svg.element("pattern", stripe, id=f"{slug}-absent", width=6, height=6, patternUnits="userSpaceOnUse")


def _cells(chart: HeatMap, layout: Layout, slug: str) -> list[str]:
    if layout.num_rows * layout.num_columns <= 400:
        return [
            _cell(chart, layout, slug, row, column)
            for row in range(layout.num_rows)
            for column in range(layout.num_columns)
        ]
    return _many_cells(chart, layout, slug)


def _cell(chart: HeatMap, layout: Layout, slug: str, row: int, column: int) -> str:
    value = chart.grid[row][column]
    x, y = layout.left + column * layout.width, layout.top + row * layout.height
    written = "no value" if value is None else plain(value)
    tip = f"{chart.row_labels[row]}, {chart.column_labels[column]}: {written}"
    paint = _paint(value, chart.shades, slug)
    title = svg.element("title", svg.escape(tip))
    drawn = svg.element("rect", title, x=x, y=y, width=layout.width - 1, height=layout.height - 1, **paint)
    if value is None or len(written) * svg.WIDE_CHAR > layout.width - 2:
        return drawn
    return drawn + svg.text(
        x + layout.width / 2, y + layout.height / 2 + 4, written, words_on(chart.shades.shade(value)), "middle"
    )


def words_on(shade: int) -> str:
    """The class of words that can be read on a shade."""
    if shade == MIDDLE_SHADE:
        return "on-middle"
    return "on-dense" if shade > MIDDLE_SHADE else "label"


def _paint(value: Cell, shades: Shades, slug: str) -> dict[str, object]:
    return {"fill": f"url(#{slug}-absent)"} if value is None else {"class_": f"h{shades.shade(value)}"}


def _many_cells(chart: HeatMap, layout: Layout, slug: str) -> list[str]:
    """One path for all cells of a shade; neighbours of a row are one rectangle."""
    paths: dict[int | None, list[str]] = {}
    for row, cells in enumerate(chart.grid):
        looks = [None if value is None else chart.shades.shade(value) for value in cells]
        for begin, end in _stretches(looks):
            x, y = layout.left + begin * layout.width, layout.top + row * layout.height
            width, height = (end - begin) * layout.width + SEAM, layout.height + SEAM
            drawn = f"M{x:.1f},{y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"
            paths.setdefault(looks[begin], []).append(drawn)
    return [
        svg.element("path", d="".join(drawn), fill=f"url(#{slug}-absent)")
        if look is None
        else svg.element("path", d="".join(drawn), class_=f"h{look}", shape_rendering="crispEdges")
        for look, drawn in paths.items()
    ]


def _stretches(looks: Sequence[object]) -> list[tuple[int, int]]:
    """Begin and end of every run of equal neighbours."""
    borders = [0, *(at for at in range(1, len(looks)) if looks[at] != looks[at - 1]), len(looks)]
    return list(zip(borders, borders[1:], strict=False))


def _row_labels(chart: HeatMap, layout: Layout) -> list[str]:
    stride = max(1, math.ceil(15 / layout.height))
    room = layout.left - 14
    return [
        svg.text(layout.left - 7, layout.top + (row + 0.5) * layout.height + 4, svg.fit(label, room), "tick", "end")
        for row, label in enumerate(chart.row_labels)
        if row % stride == 0
    ]


def _column_labels(chart: HeatMap, layout: Layout) -> list[str]:
    widest = max(len(label) for label in chart.column_labels) * svg.WIDE_CHAR + 10
    stride = max(1, math.ceil(widest / layout.width))
    return [
        svg.text(layout.left + (column + 0.5) * layout.width, layout.bottom + 15, label, "tick", "middle")
        for column, label in enumerate(chart.column_labels)
        if column % stride == 0
    ]


def _outlines(chart: HeatMap, layout: Layout) -> list[str]:
    """A frame around every marked row, and a mark beside it where rows are thin."""
    drawn = []
    for row in sorted(chart.marked):
        y = layout.top + row * layout.height
        if layout.height >= 8:
            drawn.append(svg.box(layout.left - 1, y - 1, layout.right - layout.left + 1, layout.height + 1, "marked"))
        drawn.append(svg.box(layout.right + 3, y + 1, 5, max(layout.height - 3, 1.5), "mark"))
    return drawn


def _key(chart: HeatMap, top: float, slug: str) -> str:
    shades = chart.shades
    left, width, height = 46.0, 14.0, 12.0
    if shades.high <= shades.low:
        words = "no value" if _empty(chart) else plain(shades.low)
        paint = _paint(None if _empty(chart) else shades.low, shades, slug)
        return svg.element("rect", x=left, y=top, width=width, height=height, **paint) + svg.text(
            left + width + 8, top + 11, words, "tick"
        )
    steps = [
        svg.element("rect", x=left + shade * width, y=top, width=width, height=height, class_=f"h{shade}")
        for shade in range(NUM_SHADES)
    ]
    end = left + NUM_SHADES * width
    words = [
        svg.text(left + share * (end - left), top + 26, _edge(shades, share), "tick", "middle") for share in (0, 0.5, 1)
    ]
    return "".join([*steps, *words, _absent_key(chart, end + 30, top, slug)])


def _edge(shades: Shades, share: float) -> str:
    written = plain(shades.at(share))
    return f"≤ {written}" if share == 0 and shades.cut else written


def _empty(chart: HeatMap) -> bool:
    return all(value is None for row in chart.grid for value in row)


def _absent_key(chart: HeatMap, x: float, top: float, slug: str) -> str:
    if all(value is not None for row in chart.grid for value in row):
        return ""
    swatch = svg.element("rect", x=x, y=top, width=14.0, height=12.0, fill=f"url(#{slug}-absent)")
    return swatch + svg.text(x + 20, top + 11, "no value", "tick")
