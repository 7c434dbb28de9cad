"""Runs by name. Clients send names, never paths: only runs that the server has found itself are opened."""

from __future__ import annotations

from pathlib import Path

from mnemo.errors import shorten
from mnemo.report.svg import clean
from mnemo.serving.errors import not_found
from mnemo.storage.run_header import named_runs
from mnemo.storage.shipped import SHIPPED, shipped_names
from mnemo.training.run_states import RunState, state_of


def run_paths(runs: Path) -> dict[str, Path]:
    """Folders by name: the runs in the folder of runs, and the models that come with the package."""
    own = {clean(name): path for name, path in named_runs(runs).items()}
    return {name: SHIPPED / name for name in shipped_names()} | own


def run_path(runs: Path, name: str) -> Path:
    found = run_paths(runs).get(name)
    if found is None:
        raise not_found(f"there is no run '{shorten(name, 100)}' in {runs}")
    return found


def states(runs: Path) -> list[RunState]:
    """All runs, the newest first; runs that are removed meanwhile are left out."""
    found = []
    for name, path in run_paths(runs).items():
        try:
            found.append(state_of(path, name))
        except (OSError, ValueError):
            if path.exists():
                raise
    return sorted(found, key=lambda run: run.written, reverse=True)
