"""Charts drawn with Matplotlib: lines, bars, memory plans.

Sizes are in pixels of a picture that is 480 wide. Matplotlib is imported inside functions, since that takes long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mnemo.report.number_text import number, plain, tick_labels
from mnemo.report.style import LIGHT, NUM_COLORS
from mnemo.report.svg import Drawing, clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

WIDTH, PLOT_HEIGHT = 480, 210
LEFT, RIGHT, BOTTOM = 46, 18, 42
"""Margins of a plot for its tick labels and axis labels."""
CHAR_WIDTH = 8.2
"""Width of a character; rather wide, since pages enlarge the text of figures on a phone."""
MAX_LINE_POINTS = 240
"""Longer lines show means of neighbouring points; the CSV file keeps all."""
MAX_MARKERS = 40
"""Markers of a series."""
TICK_DISTANCE = 0.08
"""Least distance of measured lengths that get a tick, as a share of the axis."""
MARKERS = {"o": 7.5, "s": 7.0, "^": 8.5, "D": 6.5}
"""Shapes and their sizes."""
DASHES = ((0, ()), (0, (3.5, 2)), (0, (1, 2)))
"""Dashes change when the markers repeat, so that lines differ by more than their colour."""
MAX_PANEL_COLUMNS = 3
BLOCK_SHARE = 0.06
"""Width of memory besides slots in the picture of a plan, as a share of all that is to scale."""


@dataclass(frozen=True)
class Series:
    label: str
    points: np.ndarray
    """(N, 2): x and y, at least one point."""
    color: int
    """Number of its colour, marker and dashes."""
    faint: bool = False
    """A thin line without markers, below the others and not in the legend."""
    band: np.ndarray | None = None
    """(N, 2): lower and upper edge around every point."""


@dataclass(frozen=True)
class LineChart:
    series: Sequence[Series]
    x_label: str
    y_label: str
    x_kind: Literal["linear", "doubling"] = "linear"
    reference: tuple[str, float] | None = None
    """Label and y of a horizontal line to compare with."""
    mark: tuple[str, float] | None = None
    """Label and x of a vertical line, such as the training length."""
    y_max: float | None = None
    """Lines are cut off above this."""
    y_logarithmic: bool = False
    markers: bool = True
    x_from_zero: bool = True
    """Whether a linear x axis begins at 0."""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float | None
    """None: no bar, only its label and text."""
    color: int
    shown: str
    """The value as text, at the end of the bar."""


@dataclass(frozen=True)
class LayerMemory:
    kind: str
    """Name of its mechanism."""
    length: int
    long: bool
    besides: str = ""
    """Memory besides its slots, in words"""


def new_canvas(height: float) -> Canvas:
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(WIDTH / 72, math.ceil(height) / 72), dpi=72)
    canvas.patch.set_visible(False)
    return canvas


def new_axes(canvas: Canvas, left: float, top: float, right: float, bottom: float) -> Axes:
    """Empty axes without a frame between these distances from the left and upper edges."""
    height = 72 * canvas.get_size_inches()[1]
    axes = canvas.add_axes((left / WIDTH, 1 - bottom / height, (right - left) / WIDTH, (bottom - top) / height))
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=6, labelcolor=LIGHT["muted"], labelsize=12)
    axes.set_axisbelow(True)
    axes.set_xticks([])
    axes.set_yticks([])
    return axes


def write(axes: Axes, x: float, y: float, words: str, color: str = "muted", **placed: Any) -> None:
    """Text at a place of the axes in data coordinates."""
    axes.annotate(words, (x, y), color=LIGHT[color], fontsize=12, annotation_clip=False, **placed)


def fit(label: str, width: float) -> str:
    """The label on one line, shortened in the middle if it is too long for `width` pixels."""
    label = clean(" ".join(label.split()))
    room = max(4, int(width / CHAR_WIDTH))
    head = (room - 1) // 2
    shown = label if len(label) <= room else label[:head] + "…" + label[len(label) - (room - 1 - head) :]
    return shown.replace("$", r"\$")  # Matplotlib reads text between dollars as mathematics


def series_color(color: int) -> str:
    return LIGHT[f"c{color % NUM_COLORS}"]


def draw_lines(chart: LineChart) -> Drawing:
    main = [series for series in chart.series if not series.faint]
    names = [series.label for series in main] + [level[0] for level in (chart.reference, chart.mark) if level]
    labels = [fit(name, WIDTH - LEFT - RIGHT - 36) for name in names]
    num_columns = max(1, int((WIDTH - LEFT) // (36 + max(map(len, labels)) * CHAR_WIDTH)))
    top = 28.0 + 18.5 * -(-len(labels) // num_columns)
    canvas = new_canvas(top + PLOT_HEIGHT + BOTTOM)
    axes = new_axes(canvas, LEFT, top, WIDTH - RIGHT, top + PLOT_HEIGHT)
    _scale_axes(axes, chart)
    _label_axes(axes, chart)
    for series in chart.series:
        if series.faint:
            _draw_line(axes, series, linewidth=1.1, alpha=0.5)
    handles, tips = [], {}
    for series in main:
        dashes = DASHES[series.color // len(MARKERS) % len(DASHES)] if len(main) > len(MARKERS) else "solid"
        artists = [_draw_line(axes, series, linewidth=2, linestyle=dashes)]
        if chart.markers:
            name, points = f"markers-{len(tips)}", _marked_points(series, chart)
            artists.append(_draw_markers(axes, series, points, name))
            tips[name] = [f"{series.label}: {number(y)} at {chart.x_label} {plain(x)}" for x, y in points]
        handles.append(tuple(artists))
    draw_legend(canvas, [*handles, *_draw_levels(axes, chart)], labels, num_columns, left=LEFT / WIDTH)
    return Drawing(canvas, tips)


def draw_legend(
    canvas: Canvas,
    handles: Sequence[Any],
    labels: Sequence[str],
    num_columns: int,
    *,
    left: float,
    sizes: tuple[float, float, float] = (1.7, 0.5, 2.5),
) -> None:
    """A legend at the top. `sizes`: of a handle, of the gap to its label, and of the gap between columns."""
    canvas.legend(
        handles,
        labels,
        ncols=num_columns,
        loc="upper left",
        bbox_to_anchor=(left, 1),
        frameon=False,
        borderpad=0,
        borderaxespad=0.2,
        handlelength=sizes[0],
        handletextpad=sizes[1],
        columnspacing=sizes[2],
        labelspacing=0.55,
        fontsize=12,
        labelcolor=LIGHT["ink"],
    )


def _scale_axes(axes: Axes, chart: LineChart) -> None:
    xs = np.concatenate([series.points[:, 0] for series in chart.series])
    bands = [series.band.ravel() for series in chart.series if series.band is not None]
    ys = np.concatenate([*(series.points[:, 1] for series in chart.series), *bands])
    ys = ys if chart.y_max is None else np.minimum(ys, chart.y_max)
    ys = np.append(ys, chart.reference[1]) if chart.reference else ys
    if chart.x_kind == "doubling":
        _scale_doubling(axes, xs)
    else:
        axes.set_xlim(*(limits(np.append(xs, 0.0), pad=0.0) if chart.x_from_zero else limits(xs)))
        set_ticks(axes.xaxis, round_ticks(*axes.get_xlim(), whole=bool((xs == np.rint(xs)).all())))
    if chart.y_logarithmic and ys.min() > 0:
        pad = max((ys.max() / ys.min()) ** 0.04, 1.02)
        axes.set_yscale("log")
        axes.set_ylim(ys.min() / pad, ys.max() * pad)
        set_ticks(axes.yaxis, _ratio_ticks(*axes.get_ylim()))
    else:
        axes.set_ylim(*limits(ys))
        set_ticks(axes.yaxis, round_ticks(*axes.get_ylim()))


def limits(values: np.ndarray, pad: float = 0.04) -> tuple[float, float]:
    """Ends of an axis that shows these values; it does not reach below 0 unless a value does."""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return (0.0, 1.0) if low == 0 else (low - abs(low) * 0.05, low + abs(low) * 0.05)
    margin = (high - low) * pad
    return (max(low - margin, 0.0) if low >= 0 else low - margin), high + margin


def set_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    axis.set_ticks(ticks, labels=tick_labels(ticks))
    axis.set_ticks([], minor=True)


def round_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=whole).tick_values(low, high)
    return [float(tick) for tick in found if low <= tick <= high]


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: 1, 2 and 5 times powers of ten, or fewer or more if it is long or short."""
    from matplotlib.ticker import LogLocator

    for factors in ((1, 2, 5), (1,)):
        found = LogLocator(subs=factors, numticks=9).tick_values(low, high)
        ticks = [float(tick) for tick in found if low <= tick <= high]
        if len(ticks) <= 9:
            break
    return ticks if len(ticks) >= 3 else round_ticks(low, high)


def _scale_doubling(axes: Axes, lengths: np.ndarray) -> None:
    """Equal distances for doubled lengths, 0 included; ticks at the lengths themselves."""
    distinct = np.unique(lengths)
    unit = float(min(distinct[distinct > 0], default=1.0))
    axes.set_xscale("function", functions=(lambda x: np.log2(1 + x / unit), lambda y: unit * (2**y - 1)))
    axes.set_xlim(distinct[0], distinct[-1] if len(distinct) > 1 else distinct[0] + unit)
    places = (axes.transScale + axes.transLimits).transform([(length, 1.0) for length in distinct])[:, 0]
    kept = [len(distinct) - 1]
    for at in reversed(range(len(distinct) - 1)):
        if places[kept[-1]] - places[at] >= TICK_DISTANCE:
            kept.append(at)
    set_ticks(axes.xaxis, distinct[kept[::-1]].tolist())


def _label_axes(axes: Axes, chart: LineChart) -> None:
    axes.grid(axis="y", color=LIGHT["grid"], linewidth=1)
    axes.spines["bottom"].set(visible=True, color=LIGHT["muted"], alpha=0.6)
    axes.set_xlabel(fit(chart.x_label, WIDTH - LEFT), color=LIGHT["muted"], fontsize=12)
    above = {"xytext": (4 - LEFT, 8), "xycoords": "axes fraction", "textcoords": "offset points"}
    write(axes, 0, 1, fit(chart.y_label + _axis_note(axes), WIDTH), **above)


def _axis_note(axes: Axes) -> str:
    """Words for a vertical axis on which heights are no measure of the values."""
    if axes.get_yscale() == "log":
        return " (logarithmic axis)"
    low, high = axes.get_ylim()
    return "" if low <= 0 <= high else " (axis does not start at 0)"


def _draw_line(axes: Axes, series: Series, **style: Any) -> Line2D:
    """The line of a series, and the band around it if there is one."""
    xs, ys = thinned(series.points, MAX_LINE_POINTS).T
    if series.band is not None and (series.band[:, 0] < series.band[:, 1]).any():
        low, high = thinned(series.band, MAX_LINE_POINTS).T
        axes.fill_between(xs, low, high, color=series_color(series.color), alpha=0.18, linewidth=0)
    (line,) = axes.plot(xs, ys, color=series_color(series.color), solid_capstyle="round", **style)
    return line


def thinned(points: np.ndarray, most: int) -> np.ndarray:
    """Means of neighbouring points if there are more than a line can show."""
    begins = np.arange(0, len(points), -(-len(points) // most))
    sizes = np.diff(begins, append=len(points))
    return np.add.reduceat(points, begins) / sizes[:, None]


def _marked_points(series: Series, chart: LineChart) -> np.ndarray:
    """Points that are not cut off, only some of them if they are many; the last one always."""
    visible = series.points if chart.y_max is None else series.points[series.points[:, 1] <= chart.y_max]
    stride = -(-len(visible) // MAX_MARKERS) or 1
    return visible[::-1][::stride]


def _draw_markers(axes: Axes, series: Series, points: np.ndarray, name: str) -> Line2D:
    """Markers above all lines, also on the edges of the plot."""
    shape = list(MARKERS)[series.color % len(MARKERS)]
    (markers,) = axes.plot(
        *points.T,
        linestyle="none",
        marker=shape,
        markersize=MARKERS[shape],
        color=series_color(series.color),
        markeredgecolor=LIGHT["card"],
        gid=name,
        clip_on=False,
        zorder=3,
    )
    return markers


def _draw_levels(axes: Axes, chart: LineChart) -> list[Line2D]:
    lines = []
    if chart.reference:
        dots = (0, (2, 3))
        lines.append(axes.axhline(chart.reference[1], color=LIGHT["muted"], linewidth=1.2, linestyle=dots, zorder=1))
    if chart.mark:
        dashes = (0, (4, 3))
        lines.append(axes.axvline(chart.mark[1], color=LIGHT["c1"], linewidth=1.2, linestyle=dashes, zorder=1))
    return lines


def draw_nothing() -> Drawing:
    canvas = new_canvas(56)
    axes = new_axes(canvas, 0, 0, WIDTH, 56)
    write(axes, 0.5, 0.5, "nothing measured yet", ha="center", va="center")
    return Drawing(canvas)


def draw_bars(bars: Sequence[Bar]) -> Drawing:
    """Horizontal bars from 0, each with its label above and its value at the end."""
    thick = 24.0 if len(bars) <= 4 else 14.0
    row, right = thick + 30, WIDTH - 4.0
    canvas = new_canvas(len(bars) * row + 2)
    axes = new_axes(canvas, 0, 0, right, len(bars) * row + 2)
    room = max(len(bar.shown) for bar in bars) * CHAR_WIDTH + 14
    values = [0.0, *(bar.value for bar in bars if bar.value is not None)]
    low, high = min(values), max(values) if max(values) > min(values) else min(values) + 1
    axes.set_xlim(low, low + (high - low) * right / max(right - room, 60))
    axes.set_ylim(len(bars) * row + 2, 0)
    beside = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
    for index, bar in enumerate(bars):
        middle, value = index * row + 20 + thick / 2, bar.value or 0.0
        write(axes, low, index * row + 14, fit(bar.label, right), "ink")
        if bar.value is not None:
            axes.barh(middle, value, thick, color=series_color(bar.color))
        write(axes, max(value, 0.0), middle, fit(bar.shown, right), "ink", xytext=(8, 0), **beside)
    return Drawing(canvas)


def draw_plans(
    plans: Mapping[str, Sequence[LayerMemory]], segment: int, color: int = 0, tokens: tuple[int, int] = (0, 0)
) -> Drawing:
    """A panel for each plan: every layer's memory to the left of the segment, the top layer at the top, to scale.

    Memory besides slots is a dotted block of fixed width. `tokens`: numbers of memory tokens before and after the
    segment, in every layer.
    """
    alone, num_columns = len(plans) == 1, min(len(plans), MAX_PANEL_COLUMNS)
    most_layers = max(map(len, plans.values()))
    row = 22.0 if most_layers <= 6 else max(7.0, 150 / most_layers)
    left, gap, heading, foot = 58.0 if alone else 26.0, 16.0, 4.0 if alone else 26.0, 42.0
    panel, width = heading + most_layers * row + foot, (WIDTH - left - 4 - gap * (num_columns - 1)) / num_columns
    canvas = new_canvas(-(-len(plans) // num_columns) * panel)
    drawn = [layer for layers in plans.values() for layer in layers]
    longest = max(layer.length for layer in drawn)
    block = BLOCK_SHARE * (longest + segment + sum(tokens)) if any(layer.besides for layer in drawn) else 0.0
    for index, (label, layers) in enumerate(plans.items()):
        x, top = left + index % num_columns * (width + gap), index // num_columns * panel + heading
        axes = new_axes(canvas, x, top, x + width, top + len(layers) * row)
        axes.set_xlim(-longest - tokens[0] - block, segment + tokens[1])
        axes.set_ylim(0.5, len(layers) + 0.5)
        _draw_layers(axes, layers, segment, color, tokens, block)
        _label_plan(axes, "" if alone else fit(label, width), longest, segment, tokens)
        if index % num_columns == 0:
            stride = math.ceil(16 / row)
            ticks = sorted({1, *range(len(layers), stride, -stride)})
            axes.set_yticks(ticks, [f"layer {tick}" if alone else str(tick) for tick in ticks])
    return Drawing(canvas)


def _draw_layers(
    axes: Axes, layers: Sequence[LayerMemory], segment: int, color: int, tokens: tuple[int, int], block: float
) -> None:
    read, write = tokens
    common: dict[str, Any] = {"height": 0.85, "edgecolor": LIGHT["card"], "linewidth": 1, "clip_on": False}
    for position, layer in enumerate(layers, 1):
        if layer.length:
            opacity = 1.0 if layer.long else 0.45
            axes.barh(position, -layer.length, left=-read, color=series_color(color), alpha=opacity, **common)
        if layer.besides:
            axes.barh(position, -block, left=-read - layer.length, color=series_color(color), hatch="...", **common)
        axes.barh(position, segment, color=LIGHT["muted"], alpha=0.35, **common)
        for width, left in ((-read, 0), (write, segment)):
            if width:
                axes.barh(position, width, left=left, color=series_color(color), hatch="////", **common)


def _label_plan(axes: Axes, label: str, longest: int, segment: int, tokens: tuple[int, int]) -> None:
    """The plan's label above; below, the lengths at the outer edges, where narrow panels leave room too."""
    (read, written), (low, high) = tokens, axes.get_xlim()
    before, after = {"memory": longest, "tokens read": read}, {"segment": segment, "tokens written": written}
    for side, x, lengths in (("left", -longest - read, before), ("right", high, after)):
        shown = {name: length for name, length in lengths.items() if length}
        for distance, words in ((4, [f"{length:,}" for length in shown.values()]), (19, shown)):
            where = {"ha": side, "va": "top", "xytext": (0, -distance), "textcoords": "offset points"}
            write(axes, x, 0.5, ", ".join(words), **where)
    top = axes.get_ylim()[1]
    write(axes, low, top, label, "ink", xytext=(0, 5), textcoords="offset points")
