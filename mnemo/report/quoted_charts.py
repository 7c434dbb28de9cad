"""Charts of published and measured values: a hollow mark is quoted from a paper, a filled one is ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mnemo.report.charts import (
    BOTTOM,
    CHAR_WIDTH,
    LEFT,
    PLOT_HEIGHT,
    RIGHT,
    WIDTH,
    draw_legend,
    limits,
    new_axes,
    new_canvas,
    round_ticks,
    series_color,
    set_ticks,
    write,
)
from mnemo.report.figure import Figure, Numbers
from mnemo.report.number_text import number, plain
from mnemo.report.plots import make_figure
from mnemo.report.style import LIGHT
from mnemo.report.svg import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEY, HEADING, GAP = 26.0, 22.0, 22.0
"""Heights of the key and of a panel's title, and the space between panels."""
ROW = 30.0
"""Height of a row with marks."""
QUOTED = ("ours", "published")
"""Names of the two kinds of values in tables of numbers."""
Place = Literal["above", "below", "left", "right", "above left", "above right", "below left", "far below"]
OFFSETS: dict[Place, tuple[float, float, str, str]] = {
    "above": (0, 9, "center", "bottom"),
    "below": (0, -9, "center", "top"),
    "left": (-9, 0, "right", "center"),
    "right": (9, 0, "left", "center"),
    "above left": (2, 9, "right", "bottom"),
    "above right": (-2, 8, "left", "bottom"),
    "below left": (-6, -6, "right", "top"),
    "far below": (-36, -44, "left", "center"),
}
"""Where words are, seen from their mark, in pixels, and which of their edges is there."""


class Mark(NamedTuple):
    """A value with its interval, if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Marks of one model from one source."""

    label: str
    marks: Sequence[Mark]
    color: int
    quoted: bool = False
    """Whether the values are a paper's."""
    joined: bool = True
    """Whether a line joins the marks."""
    shown: str = ""
    """Words next to one of its marks."""
    at: int = -1
    """Index of that mark, or of the nearest if there are fewer."""
    place: Place = "above"


@dataclass(frozen=True, kw_only=True)
class PanelChart:
    """Panels with the same axes, from left to right."""

    panels: Mapping[str, Sequence[Trace]]
    """By title, which a single panel may leave empty."""
    x_label: str
    y_label: str
    x_ticks: Mapping[float, str] | None = None
    """By default the x values of a panel, or round numbers if there is one panel."""
    x_logarithmic: bool = False
    y_limits: tuple[float, float] | None = None
    x_limits: tuple[float, float] | None = None
    level: float | None = None
    """Height of a dotted line."""
    quoted: str = "published"
    """Meaning of hollow marks."""


@dataclass(frozen=True, kw_only=True)
class MarkRow:
    """A line of a row chart."""

    label: str
    marks: Mapping[bool, Mark]
    """By whether it is quoted; `y` of a mark is not used, `low` and `high` are ends along x."""
    shown: str
    """The values as text, at the right edge."""
    heading: str = ""
    """Words above the row."""


def panel_figure(slug: str, title: str, caption: str, chart: PanelChart) -> Figure:
    traces = [(panel, trace) for panel, listed in chart.panels.items() for trace in listed]
    rows = [
        (*((panel,) if len(chart.panels) > 1 else ()), trace.label, QUOTED[trace.quoted], *mark)
        for panel, trace in traces
        for mark in trace.marks
    ]
    panel = ("panel",) if len(chart.panels) > 1 else ()
    numbers = Numbers((*panel, "line", "source", chart.x_label, chart.y_label, "lowest", "highest"), tuple(rows))
    words = " ".join(_trace_words(panel, trace) for panel, trace in traces if trace.marks)
    return make_figure(
        slug, title, caption, f"{chart.y_label} by {chart.x_label}. {words}", draw_panels(chart), numbers
    )


def _trace_words(panel: str, trace: Trace) -> str:
    values = ", ".join(f"{number(mark.y)} at {plain(mark.x)}" for mark in trace.marks)
    return f"{panel + ', ' if panel else ''}{trace.label} ({QUOTED[trace.quoted]}): {values}."


def row_figure(
    slug: str, title: str, caption: str, rows: Sequence[MarkRow], *, x_label: str, better: str, values: str = ""
) -> Figure:
    """`better`: words below the axis that say which direction is better; `values`: words above the values.

    Where two rows have the same label, numbers and words name their headings, too.
    """
    names = _row_names(rows)
    listed = [
        (*name, QUOTED[quoted], mark.x, mark.low, mark.high)
        for name, row in zip(names, rows, strict=True)
        for quoted, mark in row.marks.items()
    ]
    headers = ("group", "row")[-len(names[0]) :]
    numbers = Numbers((*headers, "source", x_label, "lowest", "highest"), tuple(listed))
    words = "; ".join(f"{', '.join(name)}: {row.shown}" for name, row in zip(names, rows, strict=True))
    drawing = draw_rows(rows, names, x_label, better, values)
    return make_figure(slug, title, caption, f"{x_label}. {words}.", drawing, numbers)


def _row_names(rows: Sequence[MarkRow]) -> Sequence[tuple[str, ...]]:
    """The label of every row; if two have the same, with the heading above it."""
    if len({row.label for row in rows}) == len(rows):
        return [(row.label,) for row in rows]
    names, heading = [], ""
    for row in rows:
        heading = row.heading or heading
        names.append((heading, row.label))
    if len(set(names)) < len(names):
        raise ValueError("rows with the same label need headings that tell them apart")
    return names


def draw_panels(chart: PanelChart) -> Drawing:
    count = len(chart.panels)
    top = KEY + 16 + (HEADING if any(chart.panels) else 0)
    canvas = new_canvas(top + PLOT_HEIGHT + BOTTOM)
    width = (WIDTH - LEFT - RIGHT - GAP * (count - 1)) / count
    tips: dict[str, list[str]] = {}
    y_limits = chart.y_limits or _y_limits(chart)
    for index, (title, traces) in enumerate(chart.panels.items()):
        left = LEFT + index * (width + GAP)
        axes = new_axes(canvas, left, top, left + width, top + PLOT_HEIGHT)
        _scale(axes, chart, traces, y_limits, labelled=index == 0)
        write(axes, 0, 1, title, "ink", xycoords="axes fraction", xytext=(0, 8), textcoords="offset points")
        for trace in traces:
            name = f"markers-{len(tips)}"
            tips[name] = [f"{trace.label}, {QUOTED[trace.quoted]}: {number(mark.y)}" for mark in trace.marks]
            _draw_trace(axes, trace, name)
    _draw_key(canvas, chart.quoted)
    height = 72 * canvas.get_size_inches()[1]
    canvas.text(4 / WIDTH, 1 - (KEY + 10) / height, chart.y_label, color=LIGHT["muted"], va="center")
    middle = (LEFT + WIDTH - RIGHT) / 2 / WIDTH
    canvas.text(middle, 9 / height, chart.x_label, color=LIGHT["muted"], ha="center", va="center")
    return Drawing(canvas, tips)


def _y_limits(chart: PanelChart) -> tuple[float, float]:
    marks = [mark for traces in chart.panels.values() for trace in traces for mark in trace.marks]
    ends = [end for mark in marks for end in (mark.y, mark.low, mark.high) if end is not None]
    return limits(np.array(ends), pad=0.08)


def _scale(
    axes: Axes, chart: PanelChart, traces: Sequence[Trace], y_limits: tuple[float, float], *, labelled: bool
) -> None:
    xs = np.array([mark.x for trace in traces for mark in trace.marks])
    if chart.x_logarithmic:
        axes.set_xscale("log")
    axes.set_xlim(*(chart.x_limits or limits(xs, pad=0.08)))
    axes.set_ylim(*y_limits)
    ticks = chart.x_ticks or {x: plain(x) for x in np.unique(xs).tolist()}
    axes.set_xticks(list(ticks), labels=list(ticks.values()))
    axes.set_xticks([], minor=True)
    set_ticks(axes.yaxis, round_ticks(*y_limits))
    if not labelled:
        axes.set_yticklabels([])
    axes.grid(axis="y", color=LIGHT["grid"], linewidth=1)
    axes.spines["bottom"].set(visible=True, color=LIGHT["muted"], alpha=0.6)
    if chart.level is not None:
        axes.axhline(chart.level, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (2, 3)), zorder=1)


def _draw_trace(axes: Axes, trace: Trace, name: str) -> None:
    color = series_color(trace.color)
    marks = np.array([mark[:2] for mark in trace.marks]).reshape(-1, 2)
    dashes: Any = (0, (3.5, 2.5)) if trace.quoted else "solid"
    if trace.joined:
        axes.plot(*marks.T, color=color, linewidth=1.4 if trace.quoted else 2.2, linestyle=dashes, zorder=2)
    for mark in trace.marks:
        if mark.low is not None and mark.high is not None and mark.low < mark.high:
            thin: dict[str, Any] = {"linewidth": 1.1, "alpha": 0.75} if trace.quoted else {"linewidth": 1.8}
            axes.plot((mark.x, mark.x), (mark.low, mark.high), color=color, clip_on=False, zorder=2, **thin)
    _draw_marks(axes, marks, color, quoted=trace.quoted, name=name)
    if trace.shown and len(marks):
        right, up, side, height = OFFSETS[trace.place]
        leader = {"arrowstyle": "-", "color": color, "shrinkB": 5, "relpos": (0.1, 0.5)}
        axes.annotate(
            trace.shown,
            tuple(marks[np.clip(trace.at, -len(marks), len(marks) - 1)]),
            xytext=(right, up),
            textcoords="offset points",
            ha=side,
            va=height,
            color=color,
            fontweight="normal" if trace.quoted else "bold",
            annotation_clip=False,
            arrowprops=leader if trace.place == "far below" else None,
            zorder=5,
        )


def _draw_marks(axes: Axes, marks: np.ndarray, color: str, *, quoted: bool, name: str) -> None:
    axes.plot(
        *marks.T,
        linestyle="none",
        marker="o",
        markersize=7.5,
        markeredgewidth=1.8 if quoted else 1.0,
        markerfacecolor=LIGHT["card"] if quoted else color,
        markeredgecolor=color if quoted else LIGHT["card"],
        gid=name,
        clip_on=False,
        zorder=3 + (not quoted),
    )


def _draw_key(canvas: Any, quoted: str = "published") -> None:
    """The meaning of hollow and filled marks."""
    from matplotlib.lines import Line2D

    common: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 7.5}
    hollow = Line2D([], [], markerfacecolor=LIGHT["card"], markeredgecolor=LIGHT["ink"], markeredgewidth=1.8, **common)
    filled = Line2D([], [], markerfacecolor=LIGHT["ink"], markeredgecolor=LIGHT["card"], **common)
    draw_legend(canvas, [filled, hollow], ["measured with Mnemo", quoted], 2, left=0, sizes=(1.0, 0.4, 2.0))


def draw_rows(
    rows: Sequence[MarkRow], names: Sequence[tuple[str, ...]], x_label: str, better: str, values: str
) -> Drawing:
    """Marks along a common axis, a row for each comparison, with labels on the left and values on the right."""
    places, bottom = _row_places(rows)
    canvas = new_canvas(bottom + BOTTOM + 16)
    left = max(len(row.label) for row in rows) * (CHAR_WIDTH - 1) + 14
    right = WIDTH - max(len(words) for words in (values, *(row.shown for row in rows))) * (CHAR_WIDTH - 1) - 20
    axes = new_axes(canvas, left, KEY, right, bottom)
    ends = [end for row in rows for mark in row.marks.values() for end in (mark.x, mark.low, mark.high, 0.0)]
    axes.set_xlim(*limits(np.array([end for end in ends if end is not None]), pad=0.06))
    axes.set_ylim(bottom, KEY)
    set_ticks(axes.xaxis, round_ticks(*axes.get_xlim()))
    axes.grid(axis="x", color=LIGHT["grid"], linewidth=1)
    axes.axvline(0, color=LIGHT["muted"], linewidth=1.2, zorder=1)
    tips: dict[str, list[str]] = {}
    edge: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    write(axes, 1, KEY - 14, values, ha="right", xytext=(WIDTH - right - 4, 0), **edge)
    for row, row_name, y in zip(rows, names, places, strict=True):
        write(axes, 0, y, row.label, "ink", xytext=(4 - left, 0), **edge)
        write(axes, 1, y, row.shown, "ink", ha="right", xytext=(WIDTH - right - 4, 0), **edge)
        if row.heading:
            plate = {"facecolor": LIGHT["card"], "edgecolor": "none", "pad": 1.5}
            write(axes, 0, y - ROW * 0.85, row.heading, xytext=(4 - left, 0), bbox=plate, **edge)
        for quoted, mark in row.marks.items():
            name = f"markers-{len(tips)}"
            tips[name] = [f"{', '.join(row_name)}, {QUOTED[quoted]}: {plain(mark.x)}"]
            beside = (-0.16 if quoted else 0.16) * ROW if len(row.marks) > 1 else 0.0
            _draw_row_mark(axes, mark._replace(y=y + beside), quoted=quoted, name=name)
    _draw_key(canvas)
    middle, height = (left + right) / 2 / WIDTH, 72 * canvas.get_size_inches()[1]
    for y, words in ((24, x_label), (8, better)):
        canvas.text(middle, y / height, words, color=LIGHT["muted"], ha="center", va="center")
    return Drawing(canvas, tips)


def _row_places(rows: Sequence[MarkRow]) -> tuple[list[float], float]:
    """The middle of every row, and the lower edge of the last one."""
    places, y = [], KEY + 4
    for row in rows:
        y += ROW * (0.75 if row.heading else 0.0)
        places.append(y + ROW / 2)
        y += ROW
    return places, y + 2


def _draw_row_mark(axes: Axes, mark: Mark, *, quoted: bool, name: str) -> None:
    color = series_color(1 if quoted else 0)
    if mark.low is not None and mark.high is not None:
        axes.plot((mark.low, mark.high), (mark.y, mark.y), color=color, linewidth=2, zorder=2)
    _draw_marks(axes, np.array([[mark.x, mark.y]]), color, quoted=quoted, name=name)
