"""Cells in processes of their own: what is heard of them, and how they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.toy_experiment import cell, experiment, known, lines, tiny, toy_command, use_numbers

from mnemo import cli
from mnemo import papers as experiments
from mnemo.papers import Experiment, pool
from mnemo.papers.jobs import training_cell
from mnemo.papers.pool import LOG, Task, Worker, run_together
from mnemo.papers.runner import Failure, run_cell, run_here
from mnemo.papers.store import RESULT, RUN, cell_folder, grid_folder, save_cell
from mnemo.storage.checkpoint import checkpoint_steps
from mnemo.storage.run_folder import locked
from mnemo.training import Status, Unwatched, stop_signals
from mnemo.training.parent import PARENT


@pytest.fixture(autouse=True)
def number_job(monkeypatch: pytest.MonkeyPatch) -> None:
    use_numbers(monkeypatch)


def test_workers_do_not_check_the_machine_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1)))
    for name, value in pool._environment(jobs=2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(PARENT)  # this process is no child of itself
    monkeypatch.setattr("mnemo.cli.reproduction.require_needs", lambda *given: pytest.fail("it was checked"))
    assert cli.main([*toy_command(tmp_path), "--cell", "n1"]) == 0
    assert "is meant for a GPU" not in capsys.readouterr().err
    assert lines(grid_folder(tmp_path / "out", "toy-numbers", "small")) == ["n1"]


@pytest.mark.parametrize(("jobs", "advised"), [("1", False), ("2", True)])
def test_models_that_would_take_turns_on_a_gpu_are_told_of(
    jobs: str, advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known(monkeypatch, experiment(cell(1)))
    monkeypatch.setattr("mnemo.cli.reproduction.advice", lambda device: "MPS is not running")
    assert cli.main([*toy_command(tmp_path), "--jobs", jobs, "--cell", "n1"]) == 0
    assert ("MPS is not running" in capsys.readouterr().err) is advised


def test_workers_that_train_are_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last lines, not those of workers before them; of many workers only a few."""
    some = experiment(*(cell(number) for number in range(1, 6)))
    for number in (1, 2):
        log = cell_folder(tmp_path, f"n{number}") / LOG
        log.parent.mkdir(parents=True)
        log.write_text(f"model: small\nstep {number}/9   1.81 ppl  3s left\n\n" if number == 1 else "")
    workers: list[Any] = [Worker(Task(some, each, tmp_path), None) for each in some.cells("small")[:2]]  # type: ignore[arg-type]
    assert pool.news(workers, waiting=0) == "toy-numbers n1: step 1/9 1.81 ppl 3s left; toy-numbers n2: starts"
    monkeypatch.setattr(pool, "MOST_NAMED", 1)
    assert pool.news(workers, waiting=3) == "toy-numbers n1: step 1/9 1.81 ppl 3s left; 1 more running; 3 waiting"
    workers[0].logged = (cell_folder(tmp_path, "n1") / LOG).stat().st_size
    assert pool.news(workers, waiting=0).startswith("toy-numbers n1: starts")


class Notes(Unwatched):
    """Lines that a run prints before its first step."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def trained(self, status: Status) -> None:
        raise KeyboardInterrupt


def test_a_worker_that_has_only_described_its_run_starts(tmp_path: Path) -> None:
    """Compiling takes minutes on a GPU, in which the last line is one such as `run: FOLDER`."""
    one = training_cell("n1", tiny(train=replace(tiny().train, compile=False)), {})
    some = replace(experiment(), cells=lambda budget: [one])
    run_here(some, "small", tmp_path, device="cpu", monitor=(notes := Notes()))
    assert notes.lines[-1].startswith("run: ")
    log = cell_folder(tmp_path, "n1") / LOG
    worker = Worker(Task(some, one, tmp_path), None)  # type: ignore[arg-type]
    for at in range(len(notes.lines)):
        log.write_text("\n".join([*notes.lines[: at + 1], "hint: --train.precision bf16 is faster"]))
        assert pool.news([worker], waiting=0) == "toy-numbers n1: starts"
    log.write_text("step 8/9 1.81 ppl\n" + "\n".join(notes.lines))
    assert pool.news([worker], waiting=0) == "toy-numbers n1: step 8/9 1.81 ppl"


@pytest.mark.parametrize(
    ("log", "code", "reason"),
    [
        ("step 1/9\nmnemo: error: the disk is full\nstep 2/9\n\n", 2, "the disk is full"),
        ("mnemo: error: first\nmnemo: error: second", 2, "second"),
        ("step 1/9\nstep  2/9", -9, "ended by signal 9 after: step 2/9"),
        ("mnemo: check failed: it diverged", 1, "mnemo: check failed: it diverged"),
        ("", 70, "ended with code 70"),
    ],
)
def test_the_reason_of_a_failure_is_the_last_error(log: str, code: int, reason: str, tmp_path: Path) -> None:
    """Not a line of progress, which another thread or a worker that was killed has left."""
    some = experiment(cell(1))
    (path := cell_folder(tmp_path, "n1") / LOG).parent.mkdir(parents=True)
    path.write_text("mnemo: error: of an earlier worker\n" + log)
    ended: Any = SimpleNamespace(returncode=code)
    worker = Worker(Task(some, some.cells("small")[0], tmp_path), ended, logged=len(path.read_text()) - len(log))
    pool._report(worker, failures := [], (printed := Lines()), stopping=False)
    assert failures == [Failure("n1", reason, path)] and failures[0].place == f"n1 ({path})"
    assert printed == [f"toy-numbers n1: {reason} ({path})"]


class Lines(list[str]):
    """Lines that a grid prints; sends a signal at the first that contains `stop_after`."""

    def __init__(self, stop_after: str = "") -> None:
        self.stop_after = stop_after

    def __call__(self, line: str) -> None:
        self.append(line)
        if self.stop_after and self.stop_after in line:
            self.stop_after = ""
            os.kill(os.getpid(), signal.SIGINT)


def first_cells(name: str, count: int) -> Experiment:
    """An experiment that processes can find, with less to do."""
    whole = experiments.find_experiment(name)
    return replace(whole, cells=lambda budget: whole.cells(budget)[:count])


def test_processes_share_the_work_and_go_on_after_an_interruption(tmp_path: Path) -> None:
    """Of several experiments, one of which takes over what another has measured."""
    flops = first_cells("lamemo-flops", 1)
    asked = [first_cells("lamemo-encoding", 2), flops, replace(flops, name="lamemo-flops-again")]
    ran = run_together(asked, "small", tmp_path, jobs=2, device="cpu", print_line=Lines("done in"))
    before = sum(len(each.found.results.cells) for each in ran)
    assert all(each.interrupted and not each.failures for each in ran) and 1 <= before < 3
    ran = run_together(asked, "small", tmp_path, jobs=2, device="cpu", print_line=(again := Lines()))
    assert not any(each.interrupted or each.failures for each in ran)
    assert [len(each.found.results.cells) for each in ran] == [2, 1, 1]
    assert sum("done in" in line for line in again) == 3 - before
    assert sum(" reuses " in line for line in again) == 1
    assert {each.at_once for all_found in ran for each in all_found.found.results.cells} == {2}


class OtherCommand(ExitStack):
    """Holds cells of a folder as a second command does. Closing it ends that command."""

    def take(self, task: Task) -> None:
        folder = cell_folder(task.grid, task.cell.name)
        folder.mkdir(parents=True, exist_ok=True)
        self.enter_context(locked(folder))


def make_at_once(task: Task, *options: Any) -> Worker:
    """In place of `pool._start`: make the cell in this process."""
    run_cell(task.cell, task.experiment.cells("small"), task.grid, torch.device("cpu"), Unwatched())
    return Worker(task, subprocess.Popen(["true"]))


def test_two_commands_share_the_cells_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other command is making is waited for, and made here if that one ends without a result."""
    some = experiment(cell(1), cell(2, reads=["n1"]), cell(3), cell(4))
    grid = grid_folder(tmp_path, some.name, "small")
    theirs, _, given_up, _ = (Task(some, each, grid) for each in some.cells("small"))
    monkeypatch.setattr(pool, "_start", make_at_once)
    printed: list[str] = []
    with OtherCommand() as other:
        for task in (theirs, given_up):
            other.take(task)

        def print_line(line: str) -> None:
            printed.append(line)
            if "done in" in line and not (cell_folder(grid, "n1") / RESULT).exists():
                assert lines(grid) == ["n4"]
                save_cell(grid, made_elsewhere)
                other.close()

        made_elsewhere = run_here(some, "small", tmp_path / "elsewhere", device="cpu").found.results.cells[0]
        (ran,) = run_together([some], "small", tmp_path, jobs=1, device="cpu", print_line=print_line)
    assert not ran.failures and len(ran.found.results.cells) == 4 and lines(grid) == ["n4", "n2", "n3"]
    assert printed[:2] == [f"toy-numbers {name} is being made by another command" for name in ("n1", "n3")]
    assert "toy-numbers n1 has a result now" in printed


def test_a_cell_that_two_commands_start_at_once_is_left_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    with OtherCommand() as other:

        def start_too_late(task: Task, *options: Any) -> Worker:
            other.take(task)
            monkeypatch.setattr(pool, "_start", make_at_once)
            return Worker(task, subprocess.Popen(["false"]))

        def print_line(line: str) -> None:
            printed.append(line)
            if "is being made" in line:
                other.close()

        monkeypatch.setattr(pool, "_start", start_too_late)
        (ran,) = run_together([experiment(cell(1))], "small", tmp_path, jobs=2, device="cpu", print_line=print_line)
    assert not ran.failures and len(ran.found.results.cells) == 1
    assert "toy-numbers n1 is being made by another command" in printed


def test_a_cell_that_the_other_command_has_completed_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was too late takes a moment to end."""

    def start_too_late(task: Task, *options: Any) -> Worker:
        run_cell(task.cell, task.experiment.cells("small"), task.grid, torch.device("cpu"), Unwatched())
        return Worker(task, subprocess.Popen(["false"]))

    monkeypatch.setattr(pool, "_start", start_too_late)
    printed: list[str] = []
    (ran,) = run_together([experiment(cell(1))], "small", tmp_path, jobs=2, device="cpu", print_line=printed.append)
    assert not ran.failures and len(ran.found.results.cells) == 1
    assert printed[-1] == "toy-numbers n1 has a result now"


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


def test_a_second_interruption_does_not_wait_for_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(task: Task, *options: Any) -> Worker:
        started.append(subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, process_group=0))
        assert started[0].stdout is not None
        with started[0].stdout as output:
            assert output.readline() == b"ready\n"
        os.kill(os.getpid(), signal.SIGINT)
        return Worker(task, started[0])

    monkeypatch.setattr(pool, "_start", start)
    monkeypatch.setattr(stop_signals, "ECHO_SECONDS", -1.0)
    monkeypatch.setattr(pool, "PATIENCE_SECONDS", 20.0)
    begin, printed = time.monotonic(), Lines("Ctrl-C again")
    (ran,) = run_together([experiment(cell(1), cell(2))], "small", tmp_path, jobs=1, device="cpu", print_line=printed)
    assert ran.interrupted and not ran.failures and started[0].returncode == -signal.SIGKILL
    assert printed[1:] == ["stopping: 1 cell saves its work, 20 s at most; Ctrl-C again stops at once"]
    assert time.monotonic() - begin < 15


SAVING = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
    "print('ready', flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("number", few(stop_signals.SIGNALS, lambda number: number == signal.SIGHUP))
def test_every_signal_that_stops_a_run_lets_workers_save(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it comes twice: `timeout`, `make` and shells may do that."""
    started: list[subprocess.Popen[bytes]] = []

    def start(task: Task, *options: Any) -> Worker:
        started.append(subprocess.Popen([sys.executable, "-c", SAVING], stdout=subprocess.PIPE, process_group=0))
        assert started[0].stdout is not None
        with started[0].stdout as output:
            assert output.readline() == b"ready\n"
        for _ in range(2):
            os.kill(os.getpid(), number)
        return Worker(task, started[0])

    monkeypatch.setattr(pool, "_start", start)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, a hang-up would stay ignored
    try:
        (ran,) = run_together([experiment(cell(1))], "small", tmp_path, jobs=2, device="cpu", print_line=Lines())
    finally:
        signal.signal(number, before)
    assert ran.signal == number and not ran.failures and started[0].returncode == 7


class WithoutParent(Unwatched):
    """The parent of this process seems to be gone after a step; `told`: it has sent SIGTERM before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, told: bool) -> None:
        self._monkeypatch, self._step, self._told, self.last = monkeypatch, step, told, 0

    def trained(self, status: Status) -> None:
        self.last = status.step
        if status.step == self._step:
            if self._told:
                os.kill(os.getpid(), signal.SIGTERM)
            self._monkeypatch.setattr(os, "getppid", lambda: 1)
            time.sleep(0.3)


@pytest.mark.parametrize("told", [False, True])
def test_a_worker_saves_and_ends_once_its_parent_is_gone(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns the process id of its parent from a variable."""
    assert pool._environment(jobs=2)[PARENT] == str(os.getpid())
    known(monkeypatch, experiment(training_cell("one", tiny(steps=3000), {})))
    monkeypatch.setenv(PARENT, str(os.getppid()))
    monkeypatch.setattr("mnemo.training.parent.POLL_SECONDS", 0.01)
    monkeypatch.setattr("mnemo.training.stop_signals.ECHO_SECONDS", -1.0)
    watcher = WithoutParent(monkeypatch, step=5, told=told)
    monkeypatch.setattr("mnemo.cli.reproduction.watching", lambda: nullcontext(watcher))
    ended = cli.main([*toy_command(tmp_path), "--cell", "one"])
    run = cell_folder(grid_folder(tmp_path / "out", "toy-numbers", "small"), "one") / RUN
    assert ended == 128 + (signal.SIGTERM if told else signal.SIGUSR1) and watcher.last == 5
    assert checkpoint_steps(run)[-1] == watcher.last


@pytest.mark.thorough
def test_what_failed_for_one_experiment_is_tried_for_the_next(tmp_path: Path) -> None:
    real = experiments.find_experiment("lamemo-flops")
    first = real.cells("self-test")[0]
    cells = [replace(first, name="no-such-cell"), replace(first, after=("x",))]
    asked = [
        replace(experiments.find_experiment(name), cells=lambda budget: cells)
        for name in (real.name, "lamemo-encoding")
    ]
    ran = run_together(asked, "self-test", tmp_path, jobs=2, device="cpu", print_line=(printed := Lines()))
    for each, found in zip(asked, ran, strict=True):
        assert f"{each.name} [1/2] no-such-cell" in "\n".join(printed)
        assert len(found.failures) == 2 and "'no-such-cell'; known: " in found.failures[0].reason
        assert str(found.failures[1]) == f"{first.name}: not all of x are done"
        assert f"{each.name} {found.failures[1]}" in printed
        assert (cell_folder(grid_folder(tmp_path, each.name, "self-test"), "no-such-cell") / LOG).exists()
