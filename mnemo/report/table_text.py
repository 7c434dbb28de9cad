"""Cells of a table as text: the numbers of a column formatted alike, a dash if there is no value."""

from __future__ import annotations

from collections.abc import Sequence

from mnemo.report.number_text import NO_VALUE, number, plain


def cell_texts(rows: Sequence[Sequence[object]], num_columns: int) -> tuple[list[list[str]], frozenset[int]]:
    """The cells as text, and the indices of columns that hold only numbers. Rows have at least `num_columns` cells."""
    columns = [[row[at] for row in rows] for at in range(num_columns)]
    numeric = frozenset(at for at, column in enumerate(columns) if _is_numeric(column))
    texts = [_column(column) for column in columns]
    return [[column[at] for column in texts] for at in range(len(rows))], numeric


def _is_numeric(column: Sequence[object]) -> bool:
    values = [cell for cell in column if cell is not None]
    return bool(values) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in values)


def _column(column: Sequence[object]) -> list[str]:
    whole = all(cell.is_integer() for cell in column if isinstance(cell, float))
    return [_cell(cell, whole) for cell in column]


def _cell(cell: object, whole: bool) -> str:
    if cell is None:
        return NO_VALUE
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return plain(cell) if whole or 0 < abs(cell) < 0.001 else number(cell, 4)
    return str(cell)
