"""Heat maps: a grid of values as shades, with a key, from a few labelled cells to thousands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mnemo.report.charts import CHAR_WIDTH, WIDTH, fit, new_axes, new_canvas, write
from mnemo.report.number_text import plain
from mnemo.report.style import DARK, LIGHT, NUM_SHADES
from mnemo.report.svg import IMAGES, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure as Canvas

MAX_CELLS = 128
"""Of a row or column; longer ones show the largest of neighbouring cells. The CSV file keeps all."""
DECADES = 6
"""A logarithmic map distinguishes values down to this many powers of ten below the largest."""
MIDDLE_SHADE = 7
"""Text on it is black; lighter shades have text in the ink colour, darker ones in the background's."""
BLACK = "#010101"


@dataclass(frozen=True)
class HeatMap:
    grid: np.ndarray
    """(rows, columns), at least one cell; NaN: no value."""
    x_label: str
    y_label: str
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    logarithmic: bool = False
    marked: frozenset[int] = frozenset()
    """Rows with an outline."""


@dataclass(frozen=True)
class Shades:
    """The range of values and their shades; `low` and `high` are equal if all values are."""

    low: float
    high: float
    logarithmic: bool
    cut: bool
    """Whether smaller values than `low` have its shade."""

    @staticmethod
    def of(grid: np.ndarray, logarithmic: bool) -> Shades:
        values = grid[np.isfinite(grid)]
        positive = values[values > 0]
        if not logarithmic or not positive.size:
            low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
            return Shades(low, high, False, False)
        high = float(positive.max())
        low = max(float(positive.min()), high / 10**DECADES)
        return Shades(low, high, True, bool(values.min() < low))

    def norm(self) -> Normalize:
        from matplotlib.colors import LogNorm, Normalize

        if self.high <= self.low:  # the only value gets a middle shade
            return Normalize(self.low - 1, self.low + 1, clip=True)
        return (LogNorm if self.logarithmic else Normalize)(self.low, self.high, clip=True)

    def shade(self, value: float) -> int:
        return min(int(float(self.norm()(value)) * NUM_SHADES), NUM_SHADES - 1)


def draw_heat(chart: HeatMap) -> Drawing:
    shown = reduced(chart)
    num_rows, num_columns = shown.grid.shape
    left = min(150.0, 16 + max(map(len, shown.row_labels)) * CHAR_WIDTH)
    width = min((WIDTH - left - 14) / num_columns, 64.0)
    height = min(max(width, 20.0), 30.0) if num_rows <= 16 else min(max(width, 320 / num_rows), 20.0)
    right, bottom = left + num_columns * width, 22 + num_rows * height
    canvas = new_canvas(bottom + 86)
    axes = new_axes(canvas, left, 22, right, bottom)
    shades = Shades.of(shown.grid, shown.logarithmic)
    _draw_cells(axes, shown, shades)
    if num_rows * num_columns <= 400:
        _separate(axes, num_rows, num_columns)
        _write_values(axes, shown, shades, width)
    _label_cells(axes, shown, left, width, height)
    _outline(axes, shown, height)
    _draw_key(canvas, shown, shades, bottom + 46)
    return Drawing(canvas)


def reduced(chart: HeatMap) -> HeatMap:
    """The same map with at most `MAX_CELLS` rows and columns, each cell the largest of its neighbours."""
    rows, columns = (np.arange(0, count, -(-count // MAX_CELLS)) for count in chart.grid.shape)
    grid = np.fmax.reduceat(np.fmax.reduceat(chart.grid, rows, axis=0), columns, axis=1)
    marked = frozenset(int(np.searchsorted(rows, row, side="right")) - 1 for row in chart.marked)
    labels = [chart.row_labels[row] for row in rows], [chart.column_labels[column] for column in columns]
    return HeatMap(grid, chart.x_label, chart.y_label, *labels, chart.logarithmic, marked)


def _colormap(colors: dict[str, str]) -> ListedColormap:
    from matplotlib.colors import ListedColormap

    return ListedColormap([colors[f"h{shade}"] for shade in range(NUM_SHADES)])


def _draw_cells(axes: Axes, chart: HeatMap, shades: Shades) -> None:
    """The same image in both modes' colours, of which the page shows one; cells without a value are hatched."""
    for name, colors in zip(IMAGES, (LIGHT, DARK), strict=True):
        grid = np.ma.masked_invalid(chart.grid)
        axes.imshow(grid, cmap=_colormap(colors), norm=shades.norm(), interpolation="none", aspect="auto", gid=name)
    if not np.isfinite(chart.grid).all():
        _hatch(axes)


def _hatch(axes: Axes) -> None:
    axes.patch.set(visible=True, facecolor=LIGHT["card"], edgecolor=LIGHT["muted"], hatch="//", linewidth=0)


def _separate(axes: Axes, num_rows: int, num_columns: int) -> None:
    lines = {"color": LIGHT["card"], "linewidth": 1}
    for at in range(1, num_rows):
        axes.axhline(at - 0.5, **lines)
    for at in range(1, num_columns):
        axes.axvline(at - 0.5, **lines)


def _write_values(axes: Axes, chart: HeatMap, shades: Shades, width: float) -> None:
    for (row, column), value in np.ndenumerate(chart.grid):
        text = plain(value) if math.isfinite(value) else ""
        if len(text) * CHAR_WIDTH <= width - 2:
            color = text_color(shades.shade(value)) if text else BLACK
            axes.text(column, row, text, color=color, ha="center", va="center", fontsize=12)


def text_color(shade: int) -> str:
    """Light mode's colour of text that can be read on a shade, and whose variable can in dark mode."""
    if shade == MIDDLE_SHADE:
        return BLACK
    return LIGHT["card" if shade > MIDDLE_SHADE else "ink"]


def _label_cells(axes: Axes, chart: HeatMap, left: float, width: float, height: float) -> None:
    num_rows, num_columns = chart.grid.shape
    rows = range(0, num_rows, max(1, math.ceil(15 / height)))
    widest = max(map(len, chart.column_labels)) * CHAR_WIDTH + 10
    columns = range(0, num_columns, max(1, math.ceil(widest / width)))
    axes.set_yticks(rows, [fit(chart.row_labels[row], left - 14) for row in rows])
    axes.set_xticks(columns, [fit(chart.column_labels[at], WIDTH / 2) for at in columns])
    axes.set_xlabel(fit(chart.x_label, WIDTH), color=LIGHT["muted"], fontsize=12)
    write(axes, -0.5, -0.5, fit(chart.y_label, WIDTH), xytext=(4 - left, 8), textcoords="offset points")


def _outline(axes: Axes, chart: HeatMap, height: float) -> None:
    """A frame around every marked row, and a bar beside it in case rows are thin."""
    from matplotlib.patches import Rectangle

    num_columns = chart.grid.shape[1]
    for row in sorted(chart.marked):
        if height >= 8:
            frame = Rectangle((-0.5, row - 0.5), num_columns, 1, fill=False, edgecolor=LIGHT["c1"], linewidth=2)
            axes.add_patch(frame).set_clip_on(False)
        ends = [row - 0.4, row + 0.4]
        beside = axes.get_yaxis_transform()
        axes.plot(
            [1.015] * 2, ends, color=LIGHT["c1"], linewidth=5, transform=beside, clip_on=False, solid_capstyle="butt"
        )


def _draw_key(canvas: Canvas, chart: HeatMap, shades: Shades, top: float) -> None:
    from matplotlib.cm import ScalarMappable

    absent = not np.isfinite(chart.grid).all()
    if np.isfinite(chart.grid).any():
        bar = new_axes(canvas, 46, top, 270, top + 12)
        _draw_shades(canvas, bar, shades, ScalarMappable(shades.norm(), _colormap(LIGHT)))
    if absent:
        swatch = new_axes(canvas, 310, top, 324, top + 12)
        _hatch(swatch)
        write(swatch, 1, 0.5, "no value", xytext=(6, 0), textcoords="offset points", va="center")


def _draw_shades(canvas: Canvas, bar: Axes, shades: Shades, colors: ScalarMappable) -> None:
    key = canvas.colorbar(colors, cax=bar, orientation="horizontal")
    key.outline.set_visible(False)
    norm = shades.norm()
    values = [shades.low] if shades.high <= shades.low else [float(norm.inverse(share)) for share in (0, 0.5, 1)]
    labels = [plain(value) for value in values]
    key.set_ticks(values, labels=[f"≤ {labels[0]}" if shades.cut else labels[0], *labels[1:]], minor=False)
    key.minorticks_off()
    bar.tick_params(length=0, labelcolor=LIGHT["muted"], labelsize=12)
