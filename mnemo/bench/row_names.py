"""Rows of a table of measurements that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mnemo.errors import MnemoError, unknown

Row = TypeVar("Row")


def named_rows(rows: Mapping[str, Row], names: str | None) -> list[Row]:
    """Return the rows of comma-separated names, in the order of the table; None means all rows."""
    wanted = list(rows) if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise MnemoError(f"name at least one of {', '.join(rows)}")
    for name in wanted:
        if name not in rows:
            raise unknown("row", name, tuple(rows))
    return [row for name, row in rows.items() if name in wanted]
