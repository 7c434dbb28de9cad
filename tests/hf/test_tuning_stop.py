"""Signals during tuning: a checkpoint is saved, and the command that is printed goes on from it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.real_models import TINY_LLAMA

from mnemo.cli import main
from mnemo.cli import tune as command
from mnemo.data.babilong import folder

OPTIONS = (
    "--memory tokens --tokens 4 --segment 64 --stages 1x96 2 --promote 0 --book-steps 0 --batch 4 --micro-batch 4 "
    "--warmup 2 --check-every 2 --check-samples 4 --test 2:4 --background 20000 --device cpu"
).split()


def words(out: Path, steps: int) -> list[str]:
    return [str(TINY_LLAMA), "--out", str(out), *OPTIONS, "--steps", str(steps)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_with_a_checkpoint_that_the_printed_command_resumes(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        if line.startswith("first step"):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(folder, "GENERATED_SENTENCES", 500)
    out = tmp_path / "with a space"
    with monkeypatch.context() as patch:
        patch.setattr(command, "_say", say)
        assert main(["tune", *words(out, 4)]) == 128 + number
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-1"]
    said = capsys.readouterr().err
    assert "mnemo: stopped and saved after step 1; resume with: mnemo tune " in said
    given = shlex.split(said.rpartition("resume with: ")[2].splitlines()[0])
    assert given == ["mnemo", "tune", *words(out, 4), "--resume"]
    assert main(given[1:]) == 0
    assert main(["tune", *words(tmp_path / "whole", 4)]) == 0
    resumed, whole = (
        torch.load(one / "checkpoint-4" / "optimizer.pt", weights_only=True)["state"]
        for one in (out, tmp_path / "whole")
    )
    assert all(torch.equal(resumed[name]["exp_avg"], whole[name]["exp_avg"]) for name in whole)
    assert json.loads((out / "results.json").read_text())["step"] == 4


@pytest.mark.slow
def test_training_is_saved_if_the_reader_of_its_output_has_ended(tmp_path: Path) -> None:
    """As with `| tee`: Ctrl-C ends that, too."""
    argv = [sys.executable, "-m", "mnemo", "tune", *words(tmp_path, 100_000)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("first step") for line in process.stdout)
            process.stdout.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 128 + signal.SIGINT
        finally:
            process.kill()
    (saved,) = tmp_path.glob("checkpoint-*")
    assert (saved / "curriculum.json").is_file()
