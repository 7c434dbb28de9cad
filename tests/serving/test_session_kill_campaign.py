"""A short campaign of kills of a server while clients use its sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign.session_kills import campaign


@pytest.mark.parametrize(("kills", "seed"), [(2, 3), pytest.param(40, 40, marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_a_campaign(kills: int, seed: int, tmp_path: Path) -> None:
    """The short one kills the server at an early file operation of a life, and while it starts."""
    found = campaign(kills, num_clients=2, seed=seed, folder=tmp_path, say=lambda line: None)
    assert found.total() == kills and len(found) >= 2
