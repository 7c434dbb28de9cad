"""Experiments that a signal stops, or whose output nobody reads."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.marks import few
from helpers.monitors import Signaller, StoppedWhenEvaluated
from helpers.toy_experiment import cell, experiment, known, tiny, toy_command, use_numbers

from mnemo import cli
from mnemo.papers.jobs import training_cell
from mnemo.papers.runner import run_here
from mnemo.papers.store import cell_folder, grid_folder
from mnemo.training.stop_signals import SIGNALS


@pytest.fixture(autouse=True)
def number_job(monkeypatch: pytest.MonkeyPatch) -> None:
    use_numbers(monkeypatch)


@pytest.mark.parametrize("number", few(SIGNALS, lambda number: number == signal.SIGUSR1))
def test_the_exit_code_names_the_signal(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the first experiment, which is stopped; the second one is not begun."""
    train = training_cell("one", tiny(steps=6), {})
    known(monkeypatch, experiment(train), experiment(train, name="toy-more"))
    monkeypatch.setattr("mnemo.cli.reproduction.watching", lambda: nullcontext(Signaller(number, step=3)))
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, a hang-up would stay ignored
    try:
        assert cli.main(["reproduce", "toy-numbers", "toy-more", *toy_command(tmp_path)[2:]]) == 128 + number
        assert cli.main([*toy_command(tmp_path), "--cell", "one"]) == 0  # goes on after step 3
    finally:
        signal.signal(number, before)
    assert "mnemo: interrupted; the same command goes on" in capsys.readouterr().err
    assert not grid_folder(tmp_path / "out", "toy-more", "small").exists()


def test_a_signal_at_the_last_step_of_a_cell_stops_the_grid(tmp_path: Path) -> None:
    grid = experiment(*(training_cell(name, tiny(steps=6), {"model": name}) for name in ("one", "two")))
    stopped = run_here(grid, "small", tmp_path, device="cpu", monitor=StoppedWhenEvaluated(step=6))
    assert stopped.signal == signal.SIGTERM and not stopped.found.results.cells
    assert not cell_folder(tmp_path, "two").exists()
    assert len(run_here(grid, "small", tmp_path, device="cpu").found.results.cells) == 2


@pytest.mark.parametrize("stopped", [False, True])
def test_pages_are_written_although_nobody_reads_the_output(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `| tee log`, which Ctrl-C ends first."""
    known(monkeypatch, experiment(training_cell("one", tiny(steps=6), {})), experiment(cell(1), name="toy-more"))
    watcher = Signaller(signal.SIGINT, step=3 if stopped else -1)
    monkeypatch.setattr("mnemo.cli.reproduction.watching", lambda: nullcontext(watcher))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as closed:
        monkeypatch.setattr("sys.stdout", closed)
        monkeypatch.setattr("sys.stderr", closed)
        code = cli.main(["reproduce", "toy-numbers", "toy-more", *toy_command(tmp_path)[2:]])
        assert code == (130 if stopped else 141)
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # closing writes what is left
    assert all((tmp_path / "site" / name).exists() for name in ("toy-numbers", "toy-more", "index.html"))
