"""The file of each row, and the table of all rows whose files are in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnemo.bench.alternatives.rows import ROWS, TOLERANCE, Row
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json

GIB = 2**30
HEADERS = (
    "row",
    "test bpc",
    "valid bpc, 1M",
    "read by",
    "train symbols/s",
    "train GiB",
    "seconds",
    "steps",
    "score symbols/s",
)
BUSY_MIB = 4096
"""GPU memory in use at the start of a row from which on another process must be there."""
PLANNED = ("seconds_aimed", "miniature", "machine", "commit")
"""What rows of one table must have in common."""
FIXED = (*PLANNED, "few_warps")
"""What a row is measured with from its first stage to its last."""
WORDS = {
    "seconds_aimed": "number of --seconds",
    "miniature": "size of the models",
    "few_warps": "choice of --few-warps",
}
"""What users call these."""


class RowFile:
    """The result of a row, which is written after each of its stages."""

    def __init__(self, folder: Path, row: Row, about: Mapping[str, Any]) -> None:
        """`about`: what the row is measured with; a file of the same row that was measured otherwise is refused."""
        self.path = result_path(folder, row)
        self.found: dict[str, Any] = {"row": row.name, "what": row.what, **about}
        if self.path.is_file():
            self._continue(load_json(self.path))

    def _continue(self, earlier: dict[str, Any]) -> None:
        for name in FIXED:
            before, now = (content.get(name, False) for content in (earlier, self.found))
            if before != now:
                values = "" if isinstance(now, dict) else f" ({before}, now {now})"
                run = self.path.with_suffix("")
                raise MnemoError(
                    f"{self.path} was measured with another {WORDS.get(name, name)}{values}: to measure the row again, "
                    f"remove it{f' and {run}' if run.exists() else ''}, or choose other --runs"
                )
        self.found = earlier

    def has(self, stage: str) -> bool:
        return stage in self.found

    def add(self, stage: str, value: Any) -> None:
        """Add the result of a stage, and write the file."""
        self.found[stage] = value
        write_json(self.path, self.found)


def result_path(folder: Path, row: Row) -> Path:
    return folder / f"{row.name}.json"


def collect(folder: Path, planned: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The results in a folder as one record, in the order of the table.

    `planned`: what the rows must have been measured with, by its names in their files; others are left out.
    """
    paths = [result_path(folder, row) for row in ROWS.values()]
    rows = [load_json(path) for path in paths if path.is_file()]
    if not rows:
        raise MnemoError(f"{folder} has no results: there is none of {', '.join(path.name for path in paths)}")
    for row in rows:
        row.pop("format_version", None)
    fitting = [row for row in rows if all(row.get(name) == value for name, value in (planned or {}).items())]
    found = remarks(fitting) if fitting else []
    found += [f"row {row['row']} is left out: it was measured otherwise" for row in rows if row not in fitting]
    return {"what": "equal training time on enwik8; see docs/alternatives.md", "rows": fitting, "remarks": found}


def remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader of the table has to know: unequal conditions, and rows that are missing or unfinished."""
    unequal = [name for name in PLANNED if any(row.get(name) != rows[0].get(name) for row in rows)]
    found = [f"rows differ in {WORDS.get(name, name)}" for name in unequal]
    if any(row.get("miniature") for row in rows):
        found.append("tiny models, which only try the command: these numbers say nothing")
    by_name = {row["row"]: row for row in rows}
    found += [f"row {name} is {state}" for name in ROWS if (state := _unfinished(by_name.get(name, {})))]
    for row in rows:
        if row.get("few_warps"):
            found.append(f"row {row['row']} has kernels with few warps")
        used = row.get("card", {}).get("used_mib", 0)
        if used > BUSY_MIB:
            found.append(f"row {row['row']} was not alone: {used:,.0f} MiB of the GPU were in use at its start")
        share = row["training"]["seconds"] / row["seconds_aimed"] - 1 if "training" in row else 0.0
        if abs(share) > TOLERANCE and not row.get("miniature"):
            how = "longer" if share > 0 else "shorter"
            found.append(f"row {row['row']} was trained {100 * abs(share):.1f}% {how} than declared")
    return found


def _unfinished(row: Mapping[str, Any]) -> str | None:
    """How far a row is; None if it is complete."""
    if "test" in row:
        return None
    if "training" in row:
        return "trained, but not scored"
    return "measured for its speed only, and not trained" if "steps" in row else "not measured"


def table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The lines of the table; values that are not known yet are dashes."""
    return [_line(row) for row in rows]


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    probe, training, test = row.get("probe", {}), row.get("training", {}), row.get("test", {})
    valid = min((score["bpc"] for score in row.get("valid", ())), default=None)
    peak = probe.get("peak_bytes")
    return (
        row["row"],
        _shown(test.get("bpc"), ".4f"),
        _shown(valid, ".4f"),
        test.get("reading", "-"),
        _shown((training or probe).get("symbols_per_second"), ",.0f"),
        _shown(None if peak is None else peak / GIB, ".1f"),
        _shown(training.get("seconds"), ".1f"),
        _shown(row.get("steps"), ",d"),
        _shown(test.get("symbols_per_second"), ",.0f"),
    )


def _shown(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
