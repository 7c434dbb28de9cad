"""Findings of an experiment as plain data: verdicts, tables and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ANSWERS = {True: "yes", False: "not at this budget", None: "open"}
"""The text of a verdict: the claim holds, does not hold at this size and number of steps, or is not decided."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    claim: str
    """One sentence."""
    paper: str
    """The paper's numbers, short."""
    ours: str
    """Ours, short, with seeds and deviation where there are several."""
    holds: bool | None
    """None: this budget does not decide it; `ours` says why."""


@dataclass(frozen=True)
class Table:
    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    """Text, numbers, or None for no value."""
    caption: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.headers) for row in self.rows):
            raise ValueError(f"table '{self.title}': every row needs {len(self.headers)} cells")


@dataclass(frozen=True)
class Sample:
    title: str
    text: str
    note: str = ""
