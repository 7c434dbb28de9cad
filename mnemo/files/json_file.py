"""JSON files of this project: objects with a `format_version` and a `checksum`, written atomically."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, shorten
from mnemo.files import atomic, checksum
from mnemo.files.safe_load import MAX_JSON_BYTES, load_object

FORMAT_VERSION = 1


def write_json(path: Path, data: Mapping[str, Any]) -> str:
    """Write an object with its format version and checksum, which is returned; an earlier file is replaced at once."""
    content = {"format_version": FORMAT_VERSION, **data}
    found = content_checksum(content)
    # The checksum is not the last field, so that the file is still JSON after its line is removed.
    content = {"format_version": FORMAT_VERSION, checksum.FIELD: found, **content}
    with atomic.new_file(path) as partial:
        with partial.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, allow_nan=False)
        size = partial.stat().st_size
        if size > MAX_JSON_BYTES:
            raise MnemoError(f"{path} would have {size:,} bytes: more than the allowed {MAX_JSON_BYTES:,}")
    return found


def load_json(path: Path) -> dict[str, Any]:
    """Load an object of this project; its checksum, if it has one, is verified and left out."""
    data = load_object(path)
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        found = shorten(str(version))
        raise MnemoError(f"{path} has format_version {found}; this version of mnemo supports {FORMAT_VERSION}")
    if not matches_checksum(data):
        hint = f"; if you have changed it on purpose, remove its line '{checksum.FIELD}'"
        raise MnemoError(f"{path} {checksum.CHANGED}{hint}")
    data.pop(checksum.FIELD, None)
    return data


def load_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of this project that has one in each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def matches_checksum(data: Mapping[str, Any]) -> bool:
    """Whether an object's content has the checksum that is stored in it, or none is stored."""
    stored = checksum.find(data)
    content = {name: value for name, value in data.items() if name != checksum.FIELD}
    return stored is None or content_checksum(content) == stored


def verify_json(path: Path) -> bool:
    """Raise MnemoError if an object is damaged; return whether it has a checksum."""
    load_json(path)
    return checksum.FIELD in load_object(path)


def without_nan(value: Any) -> Any:
    """The value with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    return [without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def content_checksum(data: Mapping[str, Any]) -> str:
    """The checksum of an object's content, independent of indentation."""
    return checksum.of_bytes(json.dumps(data, separators=(",", ":")).encode())
