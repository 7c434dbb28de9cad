"""The declared table: rows, what each measures, and the values that must and should be reached on one H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mnemo.bench.row_names import named_rows

BELOW = "below must"
Unit = Literal["ms", "tokens/s", "GiB", "s"]


@dataclass(frozen=True)
class Goal:
    what: str
    unit: Unit
    must: float | None = None
    aim: float | None = None

    def reached(self, value: float, wanted: float | None) -> bool | None:
        """Whether a measured value is at least as good as the wanted one; None if nothing is wanted."""
        if wanted is None:
            return None
        return value >= wanted if self.unit == "tokens/s" else value <= wanted

    def verdict(self, value: float) -> str:
        if self.must is None:
            return ""
        if not self.reached(value, self.must):
            return BELOW
        return "aim" if self.reached(value, self.aim) else "must"


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    goals: Mapping[str, Goal]
    """By the name of the value."""
    gib: float
    """GPU memory to reserve for the row's process, from measured peaks."""
    alone: bool = False
    """Whether nothing else may use the processor cores meanwhile."""


def _training(what: str, must: float, aim: float, memory: tuple[float, float] | None = None) -> dict[str, Goal]:
    limits = memory or (None, None)
    return {"rate": Goal(what, "tokens/s", must, aim), "memory": Goal(f"{what}: peak memory", "GiB", *limits)}


BASE, DEEP = "Transformer-XL base, batch 22", "24 x 1024, memory 2,304, batch 16"
WIKITEXT = "WikiText-103 base, adaptive softmax, batch 60"
OPERATION, WRITING = "operation, forward and backward", "generation, memory 3,800"
ROWS = {
    row.name: row
    for row in (
        Row(
            name="start",
            goals={
                "cold": Goal("start to the first step of the base model, empty caches", "s", 30, 15),
                "warm": Goal("the same, compiled before", "s", 8, 5),
            },
            gib=10,
            alone=True,
        ),
        Row(
            name="op",
            goals={
                "A": Goal(f"{OPERATION}, A", "ms", 0.44, 0.36),
                "B": Goal(f"{OPERATION}, B", "ms", 0.98, 0.80),
                "C": Goal(f"{OPERATION}, C", "ms", 0.245, 0.20),
            },
            gib=10,
        ),
        Row(name="base", goals=_training(BASE, 800e3, 1e6), gib=10),
        Row(name="24x1024", goals=_training(DEEP, 110e3, 140e3, (17, 14)), gib=24),
        Row(name="long4", goals=_training("the same, 4 of 24 layers long", 200e3, 240e3), gib=20),
        Row(name="lamemo", goals=_training("LaMemo base, batch 22", 520e3, 650e3), gib=14),
        Row(name="rmt", goals=_training("memory tokens 10, segment 128, BPTT 2", 800e3, 1e6), gib=8),
        Row(name="speedrun", goals=_training("speedrun step (rotary, 38M)", 1e6, 1.3e6), gib=16),
        # NVIDIA publishes 60k tokens/s of training on one A100.
        Row(name="wikitext", goals=_training(WIKITEXT, 60e3, 300e3), gib=16),
        Row(
            name="generation",
            goals={
                "1": Goal(f"{WRITING}, batch 1", "tokens/s", 3_500, 5_000),
                "16": Goal(f"{WRITING}, batch 16", "tokens/s", 30_000, 45_000),
                "256": Goal(f"{WRITING}, batch 256", "tokens/s", 200_000, 300_000),
            },
            gib=70,
        ),
    )
}
PROFILED = ("base", "speedrun")
"""Rows that `--profile` measures if none are named."""


def find_rows(names: str | None) -> list[Row]:
    """Parse comma-separated names of rows; None means all rows."""
    return named_rows(ROWS, names)


def waves(rows: list[Row], gib: float) -> list[list[Row]]:
    """Divide rows into groups whose memory fits the card together; every group has at least one row."""
    found: list[list[Row]] = []
    for row in rows:
        alone = row.alone or not found or any(other.alone for other in found[-1])
        if alone or sum(other.gib for other in found[-1]) + row.gib > gib:
            found.append([row])
        else:
            found[-1].append(row)
    return found
