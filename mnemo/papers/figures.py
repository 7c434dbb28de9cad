"""Figures of a grid: learning curves, bars of scores, and scores over a number that rows differ in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from mnemo.papers.experiment import CellResult, Figure, Results
from mnemo.papers.grid import Grid, Measure, Row
from mnemo.report.files import is_number
from mnemo.report.plots import Line, bar_figure, line_figure, lines_over_seeds

STEEP = 0.25
"""Share of the steps at the start whose values may leave the picture."""
BANDS = "Lines are means over seeds, bands go from the lowest to the highest."


def rows_of(grid: Grid, keys: Sequence[str] | None) -> list[Row]:
    """The rows with these keys, in their order; all rows without keys."""
    if keys is None:
        return list(grid.rows)
    return [row for key in keys if (row := grid.row(key)) is not None]


def learning_curves(
    grid: Grid,
    results: Results,
    keys: Sequence[str] | None = None,
    *,
    slug: str = "learning",
    title: str = "Learning curves",
    curve: Literal["curve", "train_curve"] = "curve",
    reference: tuple[str, float] | None = None,
) -> list[Figure]:
    """Validation or training loss over steps, in the unit of the grid's measure."""
    rows = rows_of(grid, keys)
    points = [
        (row.label, step, grid.measure.shown(loss))
        for row in rows
        for _, each in grid.found(results, row)
        for step, loss in whole_points(each, curve)
    ]
    if not points:
        return []
    top = max(y for _, x, y in points if x > STEEP * max(x for _, x, _ in points))
    cut = f" Cut off above {top:.4g}." if any(y > top for _, _, y in points) else ""
    split = "Validation set" if curve == "curve" else "Training text"
    return [
        line_figure(
            slug,
            title,
            f"{split} during training. {BANDS}{cut}",
            in_color(lines_over_seeds(points), rows),
            x_label="step",
            y_label=grid.measure.unit,
            y_max=top,
            reference=reference,
        )
    ]


def whole_points(result: CellResult, curve: str) -> list[tuple[float, float]]:
    """Points of a stored curve that are pairs of finite numbers."""
    stored = result.values.get(curve)
    points = [point for point in stored if isinstance(point, list)] if isinstance(stored, list) else []
    return [(float(point[0]), float(point[1])) for point in points if len(point) == 2 and all(map(is_number, point))]


def in_color(lines: Sequence[Line], rows: Sequence[Row]) -> list[Line]:
    colors = {row.label: row.color for row in rows}
    return [replace(line, color=colors[line.label]) for line in lines]


def score_bars(grid: Grid, results: Results, keys: Sequence[str] | None = None, *, slug: str = "test") -> list[Figure]:
    """The mean score of every row, in the colour that the row has in the other figures."""
    unit, shown = grid.measure.unit, grid.measure.shown
    found = [(row, grid.by_seed(results, row.key)) for row in rows_of(grid, keys)]
    bars = [(row.label, fmean(map(shown, values.values()))) for row, values in found if values]
    own = [row.color for row, values in found if values]
    colors = [at if color is None else color for at, color in enumerate(own)]
    better = "Longer" if grid.measure.higher_is_better else "Shorter"
    caption = f"Test set, means over seeds in {unit}. {better} is better."
    return [bar_figure(slug, f"Test {unit}", caption, bars, unit=unit, colors=colors)] if len(bars) > 1 else []


def scores_over(
    grid: Grid,
    results: Results,
    *,
    line: Callable[[Row], str],
    x: Callable[[Row], float],
    slug: str,
    title: str,
    x_label: str,
    caption: str = f"Test set. {BANDS}",
    x_kind: Literal["linear", "doubling"] = "linear",
    x_from_least: bool = False,
    reference: tuple[str, float] | None = None,
) -> list[Figure]:
    """Scores over a number that rows differ in, such as the length of their memory.

    A line has the colour of its first row.
    """
    points = [
        (line(row), x(row), grid.measure.shown(value))
        for row in grid.rows
        for value in grid.by_seed(results, row.key).values()
    ]
    if not points:
        return []
    colors = {line(row): row.color for row in reversed(grid.rows)}
    return [
        line_figure(
            slug,
            title,
            caption,
            [replace(drawn, color=colors[drawn.label]) for drawn in lines_over_seeds(points)],
            x_label=x_label,
            y_label=grid.measure.unit,
            x_kind=x_kind,
            x_from_least=x_from_least,
            reference=reference,
        )
    ]


def scores_by_measure(
    grid: Grid,
    results: Results,
    measures: Mapping[float, Measure],
    *,
    slug: str,
    title: str,
    x_label: str,
    caption: str,
) -> list[Figure]:
    """A line for every row over the numbers that its measures differ in, such as the memory that it is tested with."""
    points = [
        (row.label, x, measure.shown(value))
        for row in grid.rows
        for x, measure in measures.items()
        for value in grid.by_seed(results, row.key, measure).values()
    ]
    if not points:
        return []
    lines = in_color(lines_over_seeds(points), grid.rows)
    unit = grid.measure.unit
    return [line_figure(slug, title, f"{caption} {BANDS}", lines, x_label=x_label, y_label=unit)]
