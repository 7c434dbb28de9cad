"""Heat maps: a grid of values as shades, with a key, from a few labelled cells to thousands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mnemo.report.charts import CHAR_WIDTH, WIDTH, fit, new_axes, new_canvas, write
from mnemo.report.number_text import plain
from mnemo.report.style import DARK, LIGHT, NUM_SHADES
from mnemo.report.svg import IMAGES, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def draw_heat(chart: HeatMap) -> Drawing:
    shown = reduced(chart)
    num_rows, num_columns = shown.grid.shape
    left = min(150.0, 16 + max(map(len, shown.row_labels)) * CHAR_WIDTH)
    width = min((WIDTH - left - 14) / num_columns, 64.0)
    height = min(max(width, 20.0), 30.0) if num_rows <= 16 else min(max(width, 320 / num_rows), 20.0)
    bottom = 22 + num_rows * height
    canvas = new_canvas(bottom + 86)
    axes = new_axes(canvas, left, 22, left + num_columns * width, bottom)
    norm = value_range(shown.grid, shown.logarithmic)
    _draw_cells(axes, shown, norm)
    if num_rows * num_columns <= 400:
        _write_values(axes, shown.grid, norm, width)
    _label_cells(axes, shown, left, width, height)
    _outline(axes, shown, height)
    _draw_key(canvas, shown.grid, norm, bottom + 46)
    return Drawing(canvas)


def reduced(chart: HeatMap) -> HeatMap:
    """The same map with at most `MAX_CELLS` rows and columns, each cell the largest of its neighbours."""
    down, across = (-(-count // MAX_CELLS) for count in chart.grid.shape)
    rows, columns = (np.arange(0, count, step) for count, step in zip(chart.grid.shape, (down, across), strict=True))
    grid = np.fmax.reduceat(np.fmax.reduceat(chart.grid, rows, axis=0), columns, axis=1)
    return replace(
        chart,
        grid=grid,
        row_labels=chart.row_labels[::down],
        column_labels=chart.column_labels[::across],
        marked=frozenset(row // down for row in chart.marked),
    )


def value_range(grid: np.ndarray, logarithmic: bool) -> Normalize:
    """Maps the values to shares from 0 to 1."""
    from matplotlib.colors import LogNorm, Normalize

    values = grid[np.isfinite(grid)]
    positive = values[values > 0]
    if logarithmic and positive.size and positive.min() < positive.max():
        return LogNorm(max(positive.min(), positive.max() / 10**DECADES), positive.max(), clip=True)
    low, high = (values.min(), values.max()) if values.size else (0.0, 0.0)
    return Normalize(low, high, clip=True) if low < high else Normalize(low - 1, low + 1, clip=True)


def _colormap(colors: dict[str, str]) -> ListedColormap:
    from matplotlib.colors import ListedColormap

    return ListedColormap([colors[f"h{shade}"] for shade in range(NUM_SHADES)])


def _draw_cells(axes: Axes, chart: HeatMap, norm: Normalize) -> None:
    """The same image in the colours of both modes, of which the page shows one; cells without a value are hatched."""
    grid = np.ma.masked_invalid(chart.grid)
    for name, colors in zip(IMAGES, (LIGHT, DARK), strict=True):
        axes.imshow(grid, cmap=_colormap(colors), norm=norm, interpolation="none", aspect="auto", gid=name)
    if grid.mask.any():
        _hatch(axes)


def _hatch(axes: Axes) -> None:
    axes.patch.set(visible=True, facecolor=LIGHT["card"], edgecolor=LIGHT["muted"], hatch="//", linewidth=0)


def _write_values(axes: Axes, grid: np.ndarray, norm: Normalize, width: float) -> None:
    """Values in cells that are wide enough, and gaps between the cells."""
    for (row, column), value in np.ndenumerate(grid):
        if math.isfinite(value) and len(plain(value)) * CHAR_WIDTH <= width - 2:
            color = text_color(min(int(norm(value) * NUM_SHADES), NUM_SHADES - 1))
            axes.text(column, row, plain(value), color=color, ha="center", va="center", fontsize=12)
    num_rows, num_columns = grid.shape
    gaps = {"colors": LIGHT["card"], "linewidth": 1}
    axes.hlines(np.arange(1, num_rows) - 0.5, -0.5, num_columns - 0.5, **gaps)
    axes.vlines(np.arange(1, num_columns) - 0.5, -0.5, num_rows - 0.5, **gaps)


def text_color(shade: int) -> str:
    """A colour of text that can be read on a shade; in dark mode its variable can."""
    if shade == MIDDLE_SHADE:
        return BLACK
    return LIGHT["card" if shade > MIDDLE_SHADE else "ink"]


def _label_cells(axes: Axes, chart: HeatMap, left: float, width: float, height: float) -> None:
    """Labels of as many rows and columns as leave room for each other."""
    num_rows, num_columns = chart.grid.shape
    rows = range(0, num_rows, math.ceil(15 / height))
    widest = max(map(len, chart.column_labels)) * CHAR_WIDTH + 10
    columns = range(0, num_columns, math.ceil(widest / width))
    axes.set_yticks(rows, [fit(chart.row_labels[row], left - 14) for row in rows])
    axes.set_xticks(columns, [fit(chart.column_labels[column], WIDTH / 2) for column in columns])
    axes.set_xlabel(fit(chart.x_label, WIDTH), color=LIGHT["muted"], fontsize=12)
    write(axes, -0.5, -0.5, fit(chart.y_label, WIDTH), xytext=(4 - left, 8), textcoords="offset points")


def _outline(axes: Axes, chart: HeatMap, height: float) -> None:
    """A frame around every marked row that is high enough, and a bar beside it."""
    for row in sorted(chart.marked):
        if height >= 8:
            frame = {"fill": False, "edgecolor": LIGHT["c1"], "linewidth": 2, "clip_on": False}
            axes.barh(row, chart.grid.shape[1], 1.0, -0.5, **frame)
        axes.barh(row, 0.01, 0.8, 1.01, color=LIGHT["c1"], clip_on=False, transform=axes.get_yaxis_transform())


def _draw_key(canvas: Canvas, grid: np.ndarray, norm: Normalize, top: float) -> None:
    from matplotlib.cm import ScalarMappable

    present = np.isfinite(grid)
    if present.any():
        bar = new_axes(canvas, 46, top, 270, top + 12)
        key = canvas.colorbar(ScalarMappable(norm, _colormap(LIGHT)), cax=bar, orientation="horizontal")
        key.outline.set_visible(False)
        least, largest = grid[present].min(), grid[present].max()
        values = [float(norm.inverse(share)) for share in ((0, 0.5, 1) if least < largest else (0.5,))]
        cut = "≤ " if least < values[0] else ""
        key.set_ticks(values, labels=[f"{cut}{plain(values[0])}", *map(plain, values[1:])], color=LIGHT["muted"])
        bar.tick_params(which="both", length=0, labelsize=12)
    if not present.all():
        swatch = new_axes(canvas, 310, top, 324, top + 12)
        _hatch(swatch)
        write(swatch, 1, 0.5, "no value", xytext=(6, 0), textcoords="offset points", va="center")
