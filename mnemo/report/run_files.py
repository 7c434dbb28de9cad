"""Tell run folders from other folders by their files."""

from __future__ import annotations

from pathlib import Path

from mnemo.files.safe_load import kind_of

FILES = ("recipe.json", "metrics.jsonl")
"""A folder is a run if it holds at least one of these."""


def is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES)


def why_no_run(path: Path) -> str | None:
    """Why a path is not a run folder; None if it is one."""
    if not path.exists():
        return f"there is no run folder {path}"
    if not path.is_dir():
        return f"{path} is {kind_of(path)}, not a run folder"
    if not is_run(path):
        return f"{path} is not a run folder: it holds neither {' nor '.join(FILES)}"
    return None
