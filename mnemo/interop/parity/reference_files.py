"""Find files of reference values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mnemo.errors import MnemoError

TOLERANCE = 1e-9
"""Largest error of a comparison that passes."""


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the given files and all safetensors files in the given folders.

    Among several paths, files of other types are skipped.
    """
    found, paths = [], list(paths)
    for path in paths:
        if len(paths) > 1 and path.is_file() and path.suffix != ".safetensors":
            continue
        inside = sorted(path.rglob("*.safetensors")) if path.is_dir() else [path]
        if not inside:
            raise MnemoError(f"{path}: no safetensors file in this folder")
        found += inside
    return found
