"""Tell run folders from other folders by their files."""

from __future__ import annotations

from pathlib import Path

FILES = ("recipe.json", "metrics.jsonl")
"""A folder is a run if it holds at least one of these."""


def is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in FILES)


def why_no_run(path: Path) -> str | None:
    """Why a path is not a run folder; None if it is one."""
    if path.is_file():
        return f"{path} is a file, not a run folder"
    if not path.is_dir():
        return f"there is no run folder {path}"
    if not is_run(path):
        return f"{path} is not a run folder: it holds neither {' nor '.join(FILES)}"
    return None
