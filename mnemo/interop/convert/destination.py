"""The folder that a conversion writes."""

from __future__ import annotations

from pathlib import Path

from mnemo.errors import MnemoError


def check_free(dest: Path) -> None:
    """Raise an error if the folder exists and is not empty."""
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise MnemoError(f"{dest} exists already: name a new folder")
