"""Load files that may be broken, and write text and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.checksum import CHANGED
from mnemo.files.json_file import matches_checksum
from mnemo.files.safe_load import MAX_JSON_BYTES, MAX_LINES_BYTES, is_finite, parse_json, read_bytes
from mnemo.report.svg import clean

Record = dict[str, Any]


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
LARGEST = 1e15
"""The largest number that is drawn; sums and differences of larger ones are not exact, or overflow."""


def is_number(value: object) -> TypeGuard[int | float]:
    return is_finite(value) and abs(value) <= LARGEST


def read_json(path: Path, notes: list[str]) -> Record | None:
    """The object in a JSON file, or None and a note about the problem."""
    text = _read_text(path, notes, MAX_JSON_BYTES)
    if text is None:
        return None
    try:
        value = parse_json(text, lenient=True)
    except ValueError:
        notes.append(f"{path.name} is not valid JSON; skipped")
        return None
    if not isinstance(value, dict):
        notes.append(f"{path.name} holds no JSON object; skipped")
        return None
    if not matches_checksum(value):
        notes.append(f"{path.name} {CHANGED}; skipped")
        return None
    return value


def read_lines(path: Path, notes: list[str]) -> Iterator[tuple[int, Record]]:
    """Line numbers and objects of a file with one JSON object per line; a note for every other line."""
    text = _read_text(path, notes, MAX_LINES_BYTES)
    if text is not None and not text.strip():
        notes.append(f"{path.name} is empty")
    for number, line in enumerate((text or "").splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, lenient=True)
        except ValueError:
            record = None
        if isinstance(record, dict):
            yield number, record
        else:
            notes.append(f"{path.name}, line {number} is not a JSON object; skipped")


def _read_text(path: Path, notes: list[str], limit: int) -> str | None:
    try:
        return read_bytes(path, limit).decode("utf-8", "replace")
    except MnemoError as error:
        notes.append(str(error).replace(str(path), path.name))
    return None


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole, with its folder; an earlier file is replaced at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.new_file(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def csv_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in (headers, *rows):
        writer.writerow([_harmless(clean(cell)) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()


def _harmless(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would compute as a formula; numbers stay numbers."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not _is_numeric(text) else text


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
