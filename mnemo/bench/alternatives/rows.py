"""The declared rows: what is trained, and how each model may read a text when it is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemo.bench.row_names import named_rows

SECONDS = 450.0
"""Training time of a row, without compilation, evaluation and saving."""
SYMBOLS = 32_768
"""Symbols of an update, in every row."""
TOLERANCE = 0.02
"""Largest share by which the training time of a row may differ from the declared one."""
CORPUS, PRESET = "enwik8", "speedrun-enwik8"
CARRIED, SEPARATE, SLIDING = "state carried", "separate segments", "sliding by half a segment"

Kind = Literal["memory", "plain", "delta"]


@dataclass(frozen=True)
class Reading:
    """One way to read a text: segments of new symbols, each after symbols that are encoded again."""

    name: str
    segment: int
    context: int = 0


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    what: str
    kind: Kind
    segment: int
    """Symbols of a row of the batch in every update."""

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The ways to score the row: the best one on valid is used on test."""
        if self.kind != "plain":
            return (Reading(CARRIED, self.segment),)
        half = self.segment // 2
        return Reading(SEPARATE, self.segment), Reading(SLIDING, half, half)


def _plain(segment: int) -> Row:
    what = f"plain transformer, segments of {segment:,}"
    return Row(name=f"plain-{segment}", what=what, kind="plain", segment=segment)


ROWS = {
    row.name: row
    for row in (
        Row(name="memory", what="transformer with memory 1,024, segments of 512", kind="memory", segment=512),
        _plain(512),
        _plain(1024),
        _plain(2048),
        Row(name="gated-deltanet", what="gated DeltaNet, segments of 2,048, state carried", kind="delta", segment=2048),
        Row(
            name="kimi-delta",
            what="Kimi Delta Attention, segments of 2,048, state carried",
            kind="delta",
            segment=2048,
        ),
    )
}


def find_rows(names: str | None) -> list[Row]:
    """Parse comma-separated names of rows; None means all rows."""
    return named_rows(ROWS, names)
