"""Reading files that may be broken, and writing files that never are."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from mnemo.errors import MnemoError
from mnemo.files.safe_load import is_finite, parse_json, read_bytes
from mnemo.report.svg import clean

Record = dict[str, Any]


LARGEST = 1e15
"""Of the numbers that are drawn: sums and differences of larger ones are no longer exact, or overflow."""


def is_number(value: object) -> TypeGuard[int | float]:
    return is_finite(value) and abs(value) <= LARGEST


def read_json(path: Path, notes: list[str]) -> Record | None:
    """The object in a JSON file, or None and a note."""
    text = _read_text(path, notes)
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
    return value


def read_lines(path: Path, notes: list[str]) -> Iterator[tuple[int, Record]]:
    """Line numbers and objects of a file with one JSON object a line."""
    text = _read_text(path, notes)
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


def _read_text(path: Path, notes: list[str]) -> str | None:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except MnemoError as error:
        notes.append(str(error).replace(str(path), path.name))
    return None


def write_text(path: Path, text: str) -> None:
    """Replace the file as a whole: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def csv_text(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in (headers, *rows):
        writer.writerow([clean(cell) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()
