"""Fixtures of the experiments' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A deeper folder: a grid reuses results of grids in neighbouring folders, which are those of other sessions."""
    deeper = tmp_path / "experiments" / "experiment"
    deeper.mkdir(parents=True)
    return deeper
