"""Signals that stop a run: it saves, says how to resume, and ends with 128 + the signal."""

from __future__ import annotations

import errno
import io
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import ranks
from helpers.hang_up import default_hang_up
from helpers.monitors import Signaller, StoppedWhenEvaluated
from helpers.toy_runs import TRAIN_COMMAND, metrics, recipe, run, toy

from mnemo.cli.watching import watching
from mnemo.storage import checkpoint as checkpoints
from mnemo.training import Outcome, create_run, stop_signals, train
from mnemo.training.stop_signals import stop_on_signals
from mnemo.training.trainer import Trainer

ENDLESS = ["--train.steps", "100000", "--train.checkpoint-every", "100000", "--name", "run"]
COMMAND = [sys.executable, "-m", "mnemo", *TRAIN_COMMAND, *ENDLESS]
HANDLED = ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *HANDLED, "-m", "mnemo"]


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """After `nohup make test`, tests and the processes that they start would ignore this signal."""
    with default_hang_up():
        yield


ECHO = """
import os, signal, time
from mnemo.training.stop_signals import ECHO_SECONDS, stop_on_signals
with stop_on_signals() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signal == signal.SIGINT
    print("saving", flush=True)
    time.sleep(ECHO_SECONDS + 0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    print("too late", flush=True)
"""


def test_an_echo_is_no_second_signal_but_a_second_one_is_obeyed_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", ECHO], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "saving\n"), done.stderr


TWICE = """
import os, signal, time
from mnemo.training.stop_signals import ECHO_SECONDS, stop_on_signals
with stop_on_signals() as stop:
    for each in {signals}:
        os.kill(os.getpid(), each)
        print(each, stop.signal, flush=True)
        time.sleep(ECHO_SECONDS + 0.1)
"""


@pytest.mark.parametrize(
    ("signals", "survived"),
    [
        ([signal.SIGTERM, signal.SIGINT], 1),
        pytest.param([signal.SIGQUIT, signal.SIGTERM], 1, marks=pytest.mark.thorough),
        # Slurm's notice, then its SIGTERM at the time limit; a closed terminal signals more than once
        pytest.param([signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM], 2, marks=pytest.mark.thorough),
        ([signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1], 3),
        pytest.param([signal.SIGTERM, signal.SIGHUP], 2, marks=pytest.mark.thorough),
    ],
)
def test_a_second_signal_is_obeyed_at_once_but_not_notices(signals: list[signal.Signals], survived: int) -> None:
    numbers = [int(each) for each in signals]
    done = subprocess.run([sys.executable, "-c", TWICE.format(signals=numbers)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{each} {numbers[0]}" for each in numbers[:survived]], done.stderr
    assert done.returncode == (0 if survived == len(numbers) else -numbers[survived])


STOPPING = "mnemo: stopping after this step"
INSIST = "; a second Ctrl-C stops at once, without saving"


@pytest.mark.parametrize(
    ("number", "alone", "line"),
    [
        (signal.SIGINT, True, STOPPING + INSIST),
        (signal.SIGUSR1, True, STOPPING),  # a notice: the next Ctrl-C is the first one
        (signal.SIGINT, False, STOPPING),  # one of several processes, which ignore a second one
    ],
)
def test_the_first_signal_is_acknowledged_at_once(
    number: signal.Signals,
    alone: bool,
    line: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stop_signals, "ECHO_SECONDS", math.inf)
    with stop_on_signals(alone, tell=True):
        os.kill(os.getpid(), number)
        assert capfd.readouterr().err == line + "\n"
        os.kill(os.getpid(), number)
    assert capfd.readouterr().err == ""


def test_a_run_acknowledges_a_signal_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "run", monitor=Signaller(signal.SIGTERM, step=4)).step == 4
    assert capfd.readouterr().err == STOPPING + INSIST + "\n"


def read_lines(terminal: int, count: int) -> str:
    """What is written to a terminal may arrive in parts."""
    text = b""
    while text.count(b"\n") < count:
        assert select.select([terminal], [], [], 60)[0], text
        text += os.read(terminal, 1000)
    return text.decode()


def test_on_a_terminal_the_line_is_below_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live line of a run, and `^C`."""
    terminal, handle = pty.openpty()
    with os.fdopen(handle, "w") as output:
        monkeypatch.setattr("sys.stderr", output)
        output.write("training 3/9^C")
        output.flush()
        with stop_on_signals(tell=True):
            os.kill(os.getpid(), signal.SIGINT)
        assert read_lines(terminal, 2) == f"training 3/9^C\r\n{STOPPING}{INSIST}\r\n"
        os.close(terminal)
        with stop_on_signals(tell=True) as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT


def test_output_that_is_no_file_gets_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for output in (io.StringIO(), None):
        monkeypatch.setattr("sys.stderr", output)
        with stop_on_signals(tell=True) as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT


def test_nohup_keeps_its_meaning(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        outcome = run(tmp_path / "run", monitor=Signaller(signal.SIGHUP, step=4))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (outcome.signal, outcome.step) == (None, 12)


def stopped(command: list[str], number: int, folder: Path) -> tuple[int, str]:
    """Start a run, send it a signal after 20 lines of metrics, and return its exit code and messages."""
    messages = folder / "messages"
    with (
        messages.open("w") as output,
        subprocess.Popen(command, cwd=folder, stderr=output) as process,
    ):
        try:
            wait_for(has_lines(folder / "runs" / "run", 20), process.poll)
            process.send_signal(number)
            process.wait(120)
        finally:
            process.kill()
    return process.returncode, messages.read_text()


def wait_for(condition: Callable[[], bool], exit_code: Callable[[], int | None]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert exit_code() is None, "training ended before it could be stopped"
        assert time.monotonic() < end
        time.sleep(0.01)


def has_lines(folder: Path, count: int) -> Callable[[], bool]:
    path = folder / "metrics.jsonl"
    return lambda: path.exists() and path.read_bytes().count(b"\n") >= count


def check_saved(folder: Path) -> None:
    """The run has saved the step that it was stopped after."""
    last = checkpoints.checkpoint_steps(folder)[-1]
    assert checkpoints.load_checkpoint(checkpoints.checkpoint_path(folder, last)).reason == "signal"
    assert len(metrics(folder).splitlines()) >= last


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT])
def test_a_real_process_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    toy()
    code, said = stopped(COMMAND, number, tmp_path)
    assert code == 128 + number, said
    assert said.splitlines()[-1].endswith("resume with: mnemo train --resume runs/run")
    check_saved(tmp_path / "runs" / "run")


@pytest.mark.slow
def test_a_closed_terminal_does_not_prevent_saving(tmp_path: Path) -> None:
    """The terminal is gone when the process writes to it; it is a real one, so that the live line is tested too."""
    toy()
    folder = tmp_path / "runs" / "run"
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, tests would wait for a run that goes on
        os.chdir(tmp_path)
        os.execv(sys.executable, COMMAND)
    os.set_blocking(terminal, False)
    end = time.monotonic() + 120
    while not has_lines(folder, 20)():
        assert time.monotonic() < end
        try:
            os.read(terminal, 10**6)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    check_saved(folder)


class ClosedTerminal(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_output_that_is_gone_is_ignored(tmp_path: Path) -> None:
    with watching(ClosedTerminal()) as watcher:
        assert run(tmp_path / "run", monitor=watcher).step == 12


def test_a_signal_after_the_last_evaluation_is_not_lost(tmp_path: Path) -> None:
    """The run is finished, but what follows it may have to stop."""
    outcome = run(tmp_path / "run", monitor=StoppedWhenEvaluated(recipe().train.steps))
    assert (outcome.step, outcome.finished, outcome.signal) == (12, True, signal.SIGTERM)
    assert train(tmp_path / "run").signal is None


def test_a_signal_during_the_last_save_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(trainer: Trainer, stop: stop_signals.Stop) -> Outcome:
        outcome = train_to_the_end(trainer, stop)
        os.kill(os.getpid(), signal.SIGTERM)
        return outcome

    train_to_the_end = Trainer.run
    monkeypatch.setattr(Trainer, "run", trained)
    outcome = run(tmp_path / "run")
    assert outcome.finished and outcome.signal == signal.SIGTERM


def signalled(folder: Path, number: int) -> int:
    """Train as one of two ranks, the main one of which receives a signal."""
    signal.signal(number, signal.SIG_DFL)  # a notice that the tests were started to ignore would stay ignored
    outcome = train(folder, monitor=Signaller(number, step=4))
    assert outcome.signal is not None
    return outcome.signal


@pytest.mark.parametrize("number", [pytest.param(signal.SIGUSR1, marks=pytest.mark.thorough), signal.SIGHUP])
def test_a_signal_to_one_rank_stops_all(number: signal.Signals, tmp_path: Path) -> None:
    create_run(recipe(batch=4, device="cpu", parallel="ddp"), tmp_path / "run")
    assert ranks.run(2, signalled, tmp_path / "run", int(number)) == [number, number]
    assert checkpoints.checkpoint_steps(tmp_path / "run")[-1] == 4


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_torchrun_passes_signals_on(number: signal.Signals, tmp_path: Path) -> None:
    """As docs/preemption.md has it: torchrun passes SIGUSR1 on only with a flag."""
    toy()
    code, said = stopped([*TORCHRUN, *COMMAND[3:], "--train.device", "cpu"], number, tmp_path)
    assert code != 0
    assert "resume with: mnemo train --resume runs/run" in said
    check_saved(tmp_path / "runs" / "run")


PAGE = Path(__file__).parents[2] / "docs" / "preemption.md"


@pytest.mark.slow
@pytest.mark.thorough
def test_the_slurm_script_requeues_and_resumes(tmp_path: Path) -> None:
    """The script of the page, with a scheduler that starts commands and writes down what it should requeue."""
    toy()
    script = next(block for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.S) if "srun mnemo" in block)
    own = " ".join(TRAIN_COMMAND[1:] + ENDLESS[:-2])
    (tmp_path / "job").write_text(script.replace("tiny-bytes --name book", f"{own} --name book"))
    commands = {
        "srun": 'echo $$ > pid; exec "$@"',
        "mnemo": f'exec {sys.executable} -m mnemo "$@"',
        "scontrol": 'echo "$@" >> requeued',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    folder = tmp_path / "runs" / "book"
    for start in (1, 2):
        lines = 20 * start + (len(metrics(folder).splitlines()) if start > 1 else 0)
        with subprocess.Popen(["bash", "job"], cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL) as process:
            try:
                wait_for(has_lines(folder, lines), process.poll)
            finally:
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGUSR1)
        assert process.returncode == 128 + signal.SIGUSR1
        assert (tmp_path / "requeued").read_text() == "requeue 7\n" * start
        check_saved(folder)
