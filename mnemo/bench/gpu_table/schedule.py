"""Measure rows: those that fit the card together prepare at the same time, and are measured one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mnemo.bench.gpu_table.card import card_state
from mnemo.bench.gpu_table.rows import BELOW, Row, waves
from mnemo.bench.gpu_table.worker import RowFailed, RowProcess
from mnemo.progress import ShowProgress, silent

SHARE = 0.85
"""Part of the card's memory that rows may plan with."""
UNDER_LOAD = 0.4
"""Seconds after the start of a measurement at which the card's state is looked up."""


@dataclass(frozen=True, kw_only=True)
class RowResult:
    row: Row
    values: dict[str, float] = field(default_factory=dict)
    """By the names of the row's goals."""
    details: dict[str, Any] = field(default_factory=dict)
    card: dict[str, str | float] = field(default_factory=dict)
    """State of the card during the measurement."""
    prepared: float | None = None
    """Seconds of building and compiling, while other rows did the same."""
    profile: dict[str, Any] | None = None
    failed: str | None = None
    miniature: bool = False
    """Whether tiny models were measured, whose speeds are not compared with the goals."""

    def verdict(self, name: str) -> str:
        if name not in self.values:
            return "failed" if self.failed else ""
        return "" if self.miniature else self.row.goals[name].verdict(self.values[name])

    @property
    def slow(self) -> list[str]:
        """What is below its must."""
        return [goal.what for name, goal in self.row.goals.items() if self.verdict(name) == BELOW]

    def to_json(self) -> dict[str, Any]:
        goals = {
            name: {
                "what": goal.what,
                "unit": goal.unit,
                "value": self.values.get(name),
                "must": goal.must,
                "aim": goal.aim,
            }
            for name, goal in self.row.goals.items()
        }
        return {
            "row": self.row.name,
            "goals": goals,
            "details": self.details,
            "card": self.card,
            "prepared_seconds": self.prepared,
            "profile": self.profile,
            "failed": self.failed,
        }

    def table(self) -> list[tuple[str, str, str, str, str]]:
        """Rows of text: what, measured, must, aim, verdict."""
        found = []
        for name, goal in self.row.goals.items():
            value = self.values.get(name)
            shown = self.failed or "-" if value is None else f"{number(value)} {goal.unit}"
            found.append((goal.what, shown, number(goal.must), number(goal.aim), self.verdict(name)))
        return found


HEADERS = ("what", "measured", "must", "aim", "reached")


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def measure_rows(
    rows: Sequence[Row],
    device: str,
    *,
    gib: float,
    miniature: bool = False,
    profile: bool = False,
    show: ShowProgress = silent,
) -> Iterator[RowResult]:
    """Yield the result of every row as soon as it is known; a row that fails does not stop the others."""
    cores = os.cpu_count() or 1
    for wave in waves(list(rows), SHARE * gib):
        threads = min(cores, max(2, 2 * cores // len(wave)))
        processes = [RowProcess(row, device, miniature=miniature, profile=profile, threads=threads) for row in wave]
        try:
            for result in _wave(processes, profile, show):
                yield replace(result, miniature=miniature)
        finally:
            for process in processes:
                process.close()


def _wave(processes: Sequence[RowProcess], profile: bool, show: ShowProgress) -> Iterator[RowResult]:
    ready: list[tuple[RowProcess, float]] = []
    failed: list[RowResult] = []
    with show("compiling", len(processes), unit="rows") as bar:
        for process in processes:  # no measurement begins before the last one has compiled
            try:
                ready.append((process, process.wait_until_ready()))
            except RowFailed as error:
                failed.append(RowResult(row=process.row, failed=str(error)))
            bar.advance(note=process.row.name)
    yield from failed
    for process, prepared in ready:
        yield _measured(process, prepared, profile)
        process.close()


def _measured(process: RowProcess, prepared: float, profile: bool) -> RowResult:
    result = RowResult(row=process.row, prepared=prepared)
    try:
        process.start_measuring()
        time.sleep(UNDER_LOAD)
        result = replace(result, card=card_state())
        result = replace(result, **process.found())
        return replace(result, profile=process.profile()) if profile else result
    except (RowFailed, OSError) as error:
        return replace(result, failed=str(error) or type(error).__name__)
