from __future__ import annotations

import pytest
import torch

from mnemo.bench import update_parts


@pytest.mark.native
@pytest.mark.filterwarnings("default")  # torch warns of itself while it compiles
def test_every_part_runs_in_all_its_versions() -> None:
    """On a CPU with fewer layers: the numbers would mean nothing."""
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for calls in (
        update_parts.heads(device, 1, 3),
        update_parts.projection(device, 1, 5, 3),
        update_parts.muon_step(device, 2, 16),
    ):
        assert len(calls) == 2
        for call in calls.values():
            call()
    assert set(update_parts.cases(device, 1)) == {"queries", "keys, memory 1024", "projection, memory 1024", "Muon"}
