"""Differences that are meant: numbers that a commit has changed on purpose.

A commit that changes a number adds an entry here in the same commit. An entry applies where BASE is `after` or an
ancestor of it. One that applies and matches no difference is an error, so that the list holds true entries only.
"""

from __future__ import annotations

from typing import NamedTuple


class Declared(NamedTuple):
    case: str
    """Pattern of case names, such as `lookahead` or `xl-*`."""
    file: str
    """Pattern of paths inside the case's folder, such as `runs/tiny/metrics.jsonl`."""
    field: str
    """Pattern of fields inside the file, as the tool prints them; `*` for all."""
    after: str
    """The last commit with the old numbers."""
    why: str


DECLARED: tuple[Declared, ...] = (
    Declared(
        case="lookahead",
        file="analysis/report-files/*",
        field="*",
        after="f4b474d",
        why="the page of `mnemo analyse` also saves its table of the widest heads, as wide-heads.csv",
    ),
)
