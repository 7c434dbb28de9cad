"""JSON files of this project: objects with a `format_version`, written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, shorten
from mnemo.files import atomic
from mnemo.files.safe_load import load_object

FORMAT_VERSION = 1


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an object with its format version; an earlier file is replaced at once."""
    with atomic.new_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        json.dump({"format_version": FORMAT_VERSION, **data}, file, indent=1, allow_nan=False)


def load_json(path: Path) -> dict[str, Any]:
    data = load_object(path)
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        found = shorten(str(version))
        raise MnemoError(f"{path} has format_version {found}; this version of mnemo supports {FORMAT_VERSION}")
    return data
