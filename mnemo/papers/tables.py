"""Tables of a grid: a line for every row that has results, and columns that are chosen from a few kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from mnemo.papers.experiment import Results, Table
from mnemo.papers.grid import Grid, Measure, Row
from mnemo.papers.judge import Gain


class Column(NamedTuple):
    header: str
    entry: Callable[[Grid, Results, Row], object]


def grid_table(
    grid: Grid,
    results: Results,
    *columns: Column,
    title: str,
    caption: str,
    quoted: Sequence[Sequence[object]] = (),
    keys: Sequence[str] | None = None,
) -> list[Table]:
    """One table, or none without results. `quoted`: published rows that are not trained, with an entry per column."""
    shown = [row for row in grid.rows if (keys is None or row.key in keys) and grid.found(results, row)]
    if not shown:
        return []
    rows = [[column.entry(grid, results, row) for column in columns] for row in shown]
    return [Table(title=title, headers=[column.header for column in columns], rows=[*quoted, *rows], caption=caption)]


def label(header: str) -> Column:
    """A column with the label of each row."""
    return Column(header, lambda grid, results, row: row.label)


def cell_label(header: str, name: str) -> Column:
    """A label of the row's cells, such as the length of the memory."""
    return Column(header, lambda grid, results, row: row.labels.get(name))


def cell_labels(*names: str) -> list[Column]:
    """Labels of the row's cells, each below its own name."""
    return [cell_label(name, name) for name in names]


def score(header: str, measure: Measure | None = None) -> Column:
    """Mean and standard deviation over seeds."""

    def entry(grid: Grid, results: Results, row: Row) -> str:
        values = list(grid.by_seed(results, row.key, measure).values())
        return (measure or grid.measure).text(values) if values else ""

    return Column(header, entry)


def against(header: str, reference: str) -> Column:
    """Mean loss above that of a reference row, over the seeds that both have."""

    def entry(grid: Grid, results: Results, row: Row) -> str:
        gains = Gain(reference, row.key).by_seed(grid, results)
        return f"{fmean(gains.values()):+.4f}" if gains else ""

    return Column(header, entry)


def size(header: str, measure: Measure) -> Column:
    """A number that is the same for every seed, such as the size of a state."""

    def entry(grid: Grid, results: Results, row: Row) -> str:
        values = list(grid.by_seed(results, row.key, measure).values())
        return measure.text(values[:1]) if values else "-"

    return Column(header, entry)


def num_seeds() -> Column:
    return Column("seeds", lambda grid, results, row: len(grid.by_seed(results, row.key)))


def num_parameters() -> Column:
    def entry(grid: Grid, results: Results, row: Row) -> str:
        sizes = [each.values.get("parameters") for _, each in grid.found(results, row)]
        known = [size for size in sizes if isinstance(size, (int, float))]
        return f"{known[0] / 1e6:.3g}M" if known else "-"

    return Column("parameters", entry)


def published(header: str, index: int = 0) -> Column:
    """The row's value in the paper; '-' if the paper has none."""
    return Column(header, lambda grid, results, row: row.paper[index] if index < len(row.paper) else "-")
