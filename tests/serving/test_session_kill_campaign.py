"""A short campaign of kills of a server while clients use its sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign.session_kills import campaign


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.thorough)])
@pytest.mark.slow
def test_a_campaign(kills: int, tmp_path: Path) -> None:
    found = campaign(kills, num_clients=2, seed=kills, folder=tmp_path, say=lambda line: None)
    assert found.total() == kills and len(found) >= min(2, kills - 1)
