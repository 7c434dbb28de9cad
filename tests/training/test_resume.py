"""Kill -9 at any moment, resume: the metrics are those of the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import commands, ranks
from helpers.marks import few
from helpers.monitors import Signaller
from helpers.toy_runs import TRAIN_COMMAND, metrics, recipe, run, scored_as, toy, train_and_die

from mnemo import cli
from mnemo.memory import XL, Plan
from mnemo.recipes.recipe import AverageConfig, OptimizerConfig, ScheduleConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage.run_folder import open_run
from mnemo.training import create_run, precision, stop_signals, train

NO_MEMORY = Plan(long=XL(length=0))
RECIPES: dict[str, dict[str, Any]] = {
    "average-plateau-parts": {
        "average": AverageConfig(start=3, kind="ema", decay=0.9),
        "schedule": ScheduleConfig(kind="plateau", warmup=2),
        "optimizer": OptimizerConfig(lr=0.05, embedding_lr_factor=2.0),
        "accumulate": 2,
    },
    "varying-sgd": {
        "data": {"rotate": True},
        "vary_segment": True,
        "log_every": 5,
        "optimizer": OptimizerConfig(kind="sgd", momentum=0.9, clip=None, scale_lr_by_length=True),
    },
    "muon-parts": {
        "model": {"norm": "pre", "norm_kind": "rms", "qk_norm": True},
        "data": {"rotate": True, "drop_last": True},
        "optimizer": OptimizerConfig(kind="muon", lr=0.02, momentum=0.95, weight_decay=0.1, clip=None),
        "accumulate": 2,
    },
    "documents": {"data": {"documents": "reset"}, "average": AverageConfig(start=5), "log_every": 1},
    "clock": {"checkpoint_minutes": 1e-9, "checkpoint_every": 6, "eval_every": 6, "keep": 1, "log_every": 5},
    "context-half": {"model": {"memory": NO_MEMORY}, "context": 4, "loss": "half", "keep": 1},
}


@pytest.mark.parametrize("name", few(RECIPES, lambda name: name == "average-plateau-parts"))
def test_killed_again_and_again(name: str, tmp_path: Path) -> None:
    wanted, data = recipe(**RECIPES[name]), os.environ["MNEMO_DATA"]
    run(tmp_path / "whole", of=wanted)
    create_run(wanted, tmp_path / "killed")
    draw, deaths = random.Random(name), 0
    while _train_in(tmp_path / "killed", data, operation=draw.randint(10, 70)) == -signal.SIGKILL:
        deaths += 1
    assert deaths >= 4
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert _tensors(tmp_path / "killed") == _tensors(tmp_path / "whole")


def _train_in(folder: Path, data: str, operation: int) -> int:
    process = ranks.parent().Process(target=train_and_die, args=(str(folder), data, operation))
    process.start()
    process.join()
    return process.exitcode


def _tensors(folder: Path) -> dict[str, bytes]:
    """All numbers of the best and of the last checkpoint."""
    found = [run_folder.best_checkpoint(folder), run_folder.last_checkpoint(folder)]
    return {
        f"{checkpoint.step} {part} {name}": tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for checkpoint in found
        if checkpoint is not None
        for part in checkpoints.PARTS
        for name, tensor in checkpoint.tensors(part).items()
    }


@pytest.mark.parametrize("number", few(stop_signals.SIGNALS, lambda number: number == signal.SIGTERM))
def test_a_signal_finishes_the_step_and_saves(number: int, tmp_path: Path) -> None:
    run(tmp_path / "whole")
    before = signal.getsignal(number)
    outcome = run(tmp_path / "stopped", monitor=Signaller(number, step=10))
    assert signal.getsignal(number) == before
    assert (outcome.signal, outcome.step) == (number, 10)
    assert checkpoints.checkpoint_steps(tmp_path / "stopped")[-1] == 10
    outcome = train(tmp_path / "stopped")
    assert (outcome.signal, outcome.step) == (None, 12)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    assert _tensors(tmp_path / "stopped") == _tensors(tmp_path / "whole")


@pytest.mark.parametrize("log_every", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_signal_in_the_middle_of_an_evaluation(log_every: int, tmp_path: Path) -> None:
    """Also between two lines of metrics: losses since the last line must not be lost."""
    wanted = recipe(log_every=log_every)
    run(tmp_path / "whole", of=wanted)
    outcome = run(tmp_path / "stopped", of=wanted, monitor=Signaller(signal.SIGTERM))
    assert (outcome.step, outcome.signal, outcome.best) == (4, signal.SIGTERM, None)
    train(tmp_path / "stopped")
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")


def test_half_precision_resumes_exactly_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the processor's own bf16 instructions, which some virtual machines announce and do not have."""
    monkeypatch.setattr(precision, "survives", lambda program: False)
    half = recipe(precision="bf16")
    run(tmp_path / "whole", of=half)
    run(tmp_path / "stopped", of=half, monitor=Signaller(signal.SIGTERM, step=6))
    train(tmp_path / "stopped")
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    run(tmp_path / "full")
    assert metrics(tmp_path / "full") != metrics(tmp_path / "whole")
    assert {tensor.dtype for tensor in open_run(tmp_path / "whole").model.state_dict().values()} == {torch.float32}
    assert torch.backends.mkldnn.enabled


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    first = run(tmp_path / "run")
    before = metrics(tmp_path / "run")
    assert train(tmp_path / "run") == first
    assert metrics(tmp_path / "run") == before


def test_timing_is_cut_back_too_and_time_goes_on(tmp_path: Path) -> None:
    run(tmp_path / "run", monitor=Signaller(signal.SIGTERM, step=6))
    with (tmp_path / "run" / "timing.jsonl").open("a") as file:
        file.write('{"step": 8, "seconds": 9')
    train(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_the_command_line_survives_kill_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    toy()
    monkeypatch.chdir(tmp_path)
    assert cli.main([*TRAIN_COMMAND, "--name", "whole"]) == 0
    with _process([*TRAIN_COMMAND, "--name", "killed"]) as process:
        _wait_for_lines(tmp_path / "runs" / "killed", 30, process)
        process.kill()
    with _process(["train", "--resume", "killed"]) as process:
        _wait_for_lines(tmp_path / "runs" / "killed", 60, process)
        process.terminate()
        process.join()
        assert process.exitcode == 128 + signal.SIGTERM
    assert "mnemo train --resume runs/killed" in (tmp_path / commands.MESSAGES).read_text()
    capfd.readouterr()
    assert cli.main(["train", "--resume", "killed"]) == 0
    assert "next: mnemo eval runs/killed" in capfd.readouterr().out
    assert metrics(tmp_path / "runs" / "killed") == metrics(tmp_path / "runs" / "whole")


@contextmanager
def _process(arguments: list[str]) -> Iterator[BaseProcess]:
    process = commands.start(arguments, Path.cwd())
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _wait_for_lines(folder: Path, count: int, process: BaseProcess) -> None:
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.exitcode is None, "training ended before it could be killed"
        time.sleep(0.01)


def test_every_checkpoint_says_why_it_was_saved(tmp_path: Path) -> None:
    wanted = recipe(checkpoint_every=5, keep=9)
    scores = scored_as([3.0, 2.0, 4.0], wanted)
    run(tmp_path / "run", of=wanted, data=scores, monitor=Signaller(signal.SIGTERM, step=6))
    assert _reasons(tmp_path / "run") == {0: "interval", 4: "best", 5: "interval", 6: "signal"}
    train(tmp_path / "run", data=scores)
    assert _reasons(tmp_path / "run") == {0: "interval", 4: "best", 5: "interval", 8: "best", 10: "interval", 12: "end"}


def _reasons(folder: Path) -> dict[int, str]:
    steps = checkpoints.checkpoint_steps(folder)
    return {step: checkpoints.load_checkpoint(checkpoints.checkpoint_path(folder, step)).reason for step in steps}
