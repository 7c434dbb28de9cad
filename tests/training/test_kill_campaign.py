"""A short campaign of kills, and torchrun that starts a job again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from campaign.kills import campaign
from helpers import ranks
from helpers.toy_runs import TRAIN_COMMAND, metrics, toy

from mnemo.cli import main

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_short_campaign(size: int, tmp_path: Path) -> None:
    """One process writes checkpoints in the background, two write them together."""
    found = campaign(kills=4, size=size, seed=1, folder=tmp_path, say=lambda line: None, steps=12)
    assert found.total() == 4 and len(found) >= 2


def run_inside(folder: Path, arguments: list[str]) -> int:
    os.chdir(folder)
    return main(arguments)


@pytest.mark.slow
def test_torchrun_starts_a_failed_job_again(tmp_path: Path) -> None:
    toy()
    short = [*TRAIN_COMMAND, "--train.steps", "20", "--train.device", "cpu"]
    script = str(Path(__file__).parents[1] / "helpers" / "dies_once.py")
    done = subprocess.run(
        [*TORCHRUN, script, *short, "--name", "again"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "continuing after step 7" in done.stderr
    assert ranks.run(2, run_inside, tmp_path, [*short, "--name", "whole"]) == [0, 0]
    assert metrics(tmp_path / "runs" / "again") == metrics(tmp_path / "runs" / "whole")
