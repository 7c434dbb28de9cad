"""Reading files that may be broken, and writing files that never are."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

Record = dict[str, Any]


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_json(path: Path, notes: list[str]) -> Record | None:
    """The object in a JSON file, or None and a note."""
    text = _read_text(path, notes)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
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
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield number, record
        else:
            notes.append(f"{path.name}, line {number} is not a JSON object; skipped")


def _read_text(path: Path, notes: list[str]) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
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
    writer.writerow(headers)
    writer.writerows(rows)
    return buffer.getvalue()
