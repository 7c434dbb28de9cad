"""Findings of an experiment as plain data: verdicts, tables and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ANSWERS = {True: "yes", False: "not at this budget", None: "open"}
"""The text of a verdict: the claim holds, does not hold at this size and number of steps, or is not decided."""


class Margin(NamedTuple):
    """By how much one model is better than another, in the unit of the loss or accuracy that is compared."""

    mean: float
    half_width: float | None
    """Of the 95% interval; None if the spread over seeds is unknown."""
    loss: float
    """Mean of the worse model."""

    @property
    def shares(self) -> tuple[float, float | None, float | None]:
        """Mean and ends of the interval as shares of the worse model's loss."""
        ends = (None, None) if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)
        low, high = (None if end is None else end / self.loss for end in ends)
        return self.mean / self.loss, low, high


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
    brief: str = ""
    """The scores of `ours` and the number of seeds, without intervals."""
    margin: Margin | None = None
    """Of a claim that compares two models."""


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
