"""The id of a run: random, made when the run is created, and repeated in its checkpoints, best.json and overrides.json.

It shows that a file belongs to another run, even if all tensors have the same shapes. No number depends on it.
Runs of earlier versions have none, and their checkpoints are not compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, shorten
from mnemo.files.json_file import load_json

RECIPE = "recipe.json"
FIELD = "run_id"


def new() -> str:
    return secrets.token_hex(8)


def of_run(folder: Path) -> dict[str, str]:
    """The id of the run in a folder, as a field of the JSON files that repeat it; {} if the run has none."""
    header = folder / RECIPE
    known = load_json(header).get(FIELD) if header.is_file() else None
    return {} if known is None else {FIELD: str(known)}


def require_own(path: Path, found: Mapping[str, Any]) -> None:
    """Raise MnemoError if the JSON `found` at `path`, a file of a run folder, has the id of another run."""
    if FIELD in found:
        require_same(path, path.parent, found)


def require_same(path: Path, folder: Path, found: Mapping[str, Any]) -> None:
    """Raise MnemoError if the JSON `found` at `path` is of another run than the one in `folder`."""
    expected, own = of_run(folder).get(FIELD), found.get(FIELD)
    if own != expected:
        ids = [shorten(str(each)) if each is not None else "none" for each in (own, expected)]
        raise MnemoError(f"{path} belongs to another run: its {FIELD} is {ids[0]}, that of {folder} is {ids[1]}")
