"""A short campaign of kills, and torchrun's launcher that starts a job again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from campaign.kills import campaign
from helpers import ranks
from helpers.toy_runs import TRAIN_COMMAND, metrics, toy
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from mnemo.cli import main
from mnemo.storage import sharded


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_short_campaign(size: int, tmp_path: Path) -> None:
    """One process writes checkpoints in the background, two write them together."""
    found = campaign(kills=4, size=size, seed=1, folder=tmp_path, say=lambda line: None, steps=12)
    assert found.total() == 4 and len(found) >= 2


def run_inside(folder: Path, arguments: list[str]) -> int:
    os.chdir(folder)
    return main(arguments)


def die_once(folder: Path, data: str, arguments: list[str]) -> None:
    """The command line as a job whose second process is killed during a save at the first start only."""
    os.chdir(folder)
    os.environ["MNEMO_DATA"] = data
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        write, count = sharded.write, iter(range(3))
        sharded.write = lambda *given: os._exit(9) if next(count) == 2 else write(*given)
    assert main(arguments) == 0


@pytest.mark.thorough
def test_torchruns_launcher_starts_a_failed_job_again(tmp_path: Path) -> None:
    """By the function that the command torchrun calls, so that processes start fast."""
    toy()
    short = [*TRAIN_COMMAND, "--train.steps", "20", "--train.device", "cpu"]
    ranks.parent()
    (tmp_path / "logs").mkdir()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ERR),
    )
    elastic_launch(config, die_once)(tmp_path, os.environ["MNEMO_DATA"], [*short, "--name", "again"])
    said = [path.read_text() for path in (tmp_path / "logs").rglob("stderr.log")]
    assert any("continuing after step 7" in text for text in said)
    assert ranks.run(2, run_inside, tmp_path, [*short, "--name", "whole"]) == [0, 0]
    assert metrics(tmp_path / "runs" / "again") == metrics(tmp_path / "runs" / "whole")
