"""Run several cells at once, each in its own process: one small model uses a fraction of a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mnemo.files.json_file import load_json
from mnemo.papers.experiment import Budget, Cell, Experiment
from mnemo.papers.runner import POLL_SECONDS, Failure, PrintLine, Ran, announce, continue_grid, is_made_elsewhere
from mnemo.papers.store import RESULT, cell_folder, grid_folder, is_done, load_grid, reuse
from mnemo.training.parent import PARENT
from mnemo.training.stop_signals import NOTICES, Stop, stop_on_signals

PATIENCE_SECONDS = 60.0
"""Time for workers to write checkpoints before they are killed."""
LOG = "log.txt"
CHECKED = "MNEMO_MACHINE_CHECKED"
"""Variable of workers' environments: the machine was checked for all cells, which takes a second."""
NEWS_SECONDS = 30.0
"""Between lines that say how far the workers are."""
MOST_NAMED = 3
"""Workers of such a line."""
ERROR = "mnemo: error: "
"""Beginning of the line with which a command ends that has failed."""
DESCRIPTION = tuple(
    f"{word}: " for word in "vocabulary model memory corpus batch validation device step processes run hint".split()
)
"""Beginnings of lines with which a run describes itself before its first step."""


@dataclass(frozen=True)
class Task:
    experiment: Experiment
    cell: Cell
    grid: Path


@dataclass
class Worker:
    task: Task
    process: subprocess.Popen[bytes]
    logged: int = 0
    """Bytes of its log that earlier workers have written."""


@contextmanager
def _ending(running: list[Worker], stop: Stop) -> Iterator[None]:
    """End all workers when the block ends, also by an exception."""
    try:
        yield
    finally:
        _end(running, stop)


def run_together(
    experiments: Sequence[Experiment], budget: Budget, out: Path, *, jobs: int, device: str, print_line: PrintLine
) -> list[Ran]:
    """Run all unfinished cells in order, `jobs` at a time; their output goes to a log in their folders."""
    waiting = [task for each in experiments for task in _tasks(each, budget, out)]
    running: list[Worker] = []
    failures: dict[str, list[Failure]] = {each.name: [] for each in experiments}
    told, shared = time.monotonic(), set[str]()
    with stop_on_signals(alone=False) as stop, _ending(running, stop):
        while running or (waiting and not stop.signal):
            elsewhere = [task for task in waiting if is_made_elsewhere(task.grid, task.cell)]
            for name in sorted(set(map(_name, elsewhere)) - shared):
                shared.add(name)
                print_line(f"{name} is being made by another command")
            while not stop.signal and len(running) < jobs and (task := next_task(waiting, running, elsewhere)):
                waiting.remove(task)
                if known := _made_already(task, budget):
                    print_line(f"{_name(task)} {known}")
                    continue
                print_line(_announce(task, budget))
                running.append(_start(task, budget, device, out, jobs))
            if not (running or elsewhere):
                break
            if stop.signal and running:
                print_line(_stopping(len(running), stop))
                _end(running, stop)
            time.sleep(POLL_SECONDS)
            if time.monotonic() - told > NEWS_SECONDS and not stop.signal:
                told = time.monotonic()
                print_line(news(running, len(waiting) - len(elsewhere), len(elsewhere)))
            for worker in _take_ended(running):
                if worker.process.returncode and _taken_elsewhere(worker.task):
                    waiting.append(worker.task)
                else:
                    _report(worker, failures[worker.task.experiment.name], print_line, stop.signal is not None)
    if not stop.signal:
        for task in waiting:
            failure = Failure(task.cell.name, f"not all of {', '.join(task.cell.after)} are done")
            failures[task.experiment.name].append(failure)
            print_line(f"{task.experiment.name} {failure}")
    return [
        Ran(load_grid(grid_folder(out, each.name, budget), each, budget), tuple(failures[each.name]), stop.signal)
        for each in experiments
    ]


def _tasks(experiment: Experiment, budget: Budget, out: Path) -> list[Task]:
    grid = grid_folder(out, experiment.name, budget)
    return [Task(experiment, cell, grid) for cell in continue_grid(experiment, budget, grid)]


def _taken_elsewhere(task: Task) -> bool:
    """Whether another command has taken the cell at the same moment as this one."""
    return is_made_elsewhere(task.grid, task.cell) or is_done(task.grid, task.cell)


def _made_already(task: Task, budget: Budget) -> str | None:
    """What is known of the cell's result since it was listed; that of another experiment is linked to."""
    if is_done(task.grid, task.cell):
        return "has a result now"
    known = reuse(task.grid, task.cell, task.experiment.cells(budget))
    return f"reuses {known}" if known else None


def next_task(waiting: Sequence[Task], running: Sequence[Worker], elsewhere: Collection[Task] = ()) -> Task | None:
    """The first task that can start. Cells that measure time start when no other cell runs or is ready; if others need
    their results, before all others. Those that another command is making, `elsewhere`, do not start.

    A measurement that is running for one experiment is not started for another, which will reuse the result.
    """
    if any(worker.task.cell.alone for worker in running):
        return None
    begun = {worker.task.cell.fingerprint for worker in running if not worker.task.cell.after}
    unmade = {(task.grid, task.cell.name) for task in [*waiting, *(worker.task for worker in running)]}
    free = (task for task in waiting if task.cell.fingerprint not in begun and task not in elsewhere)
    ready = [task for task in free if _is_ready(task, unmade)]
    together = next((task for task in ready if not task.cell.alone), None)
    if running:
        return together
    needed = {(task.grid, name) for task in waiting for name in task.cell.after}
    first = next((task for task in ready if task.cell.alone and (task.grid, task.cell.name) in needed), None)
    return first or together or (ready[0] if ready else None)


def _is_ready(task: Task, unmade: set[tuple[Path, str]]) -> bool:
    """Whether all cells that it comes after have results, none of which will be made again."""
    return all(
        (task.grid, name) not in unmade and (cell_folder(task.grid, name) / RESULT).exists() for name in task.cell.after
    )


def _announce(task: Task, budget: Budget) -> str:
    return f"{task.experiment.name} {announce(task.cell, task.experiment.cells(budget))}"


def _name(task: Task) -> str:
    return f"{task.experiment.name} {task.cell.name}"


def _environment(jobs: int) -> dict[str, str]:
    """Share the cores among the workers and their compilers; by default, each uses all of them."""
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    shared = {"TORCHINDUCTOR_COMPILE_THREADS": share, "OMP_NUM_THREADS": share}
    return {**shared, **os.environ, CHECKED: "1", PARENT: str(os.getpid())}


def _start(task: Task, budget: Budget, device: str, out: Path, jobs: int) -> Worker:
    folder = cell_folder(task.grid, task.cell.name)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "mnemo", "reproduce", task.experiment.name, "--budget", budget]
    command += ["--out", str(out), "--cell", task.cell.name, "--device", device]
    command += ["--jobs", "1" if task.cell.alone else str(jobs)]
    with (folder / LOG).open("ab") as log:
        logged = log.tell()
        # A process group keeps Ctrl-C from the worker; this process then asks it to write a checkpoint.
        process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0, env=_environment(jobs))
    return Worker(task, process, logged)


def news(running: Sequence[Worker], waiting: int, elsewhere: int = 0) -> str:
    """What some workers have printed last, and how many other cells run, wait, or are made by other commands."""
    named = [f"{_name(worker.task)}: {_state(worker)}" for worker in running[:MOST_NAMED]]
    others = {"more running": len(running) - len(named), "waiting": waiting, "made by other commands": elsewhere}
    return "; ".join([*named, *(f"{count} {how}" for how, count in others.items() if count)])


def _state(worker: Worker) -> str:
    """The last line that says how far the worker is; a run that compiles has described itself only."""
    return next((line for line in _last_lines(worker) if not line.startswith(DESCRIPTION)), "starts")


def _last_lines(worker: Worker) -> Iterator[str]:
    """What the worker has logged, the last line first."""
    log = (cell_folder(worker.task.grid, worker.task.cell.name) / LOG).read_bytes()
    lines = log[worker.logged :].decode(errors="replace").split("\n")
    return (" ".join(line.split()) for line in reversed(lines) if line.strip())


def _take_ended(running: list[Worker]) -> list[Worker]:
    ended = [worker for worker in running if worker.process.poll() is not None]
    for worker in ended:
        running.remove(worker)
    return ended


def _stopping(count: int, stop: Stop) -> str:
    cells = "1 cell saves its" if count == 1 else f"{count} cells save their"
    again = "" if stop.signal in NOTICES else "; Ctrl-C again stops at once"
    return f"stopping: {cells} work, {PATIENCE_SECONDS:.0f} s at most{again}"


def _end(running: Sequence[Worker], stop: Stop) -> None:
    """Ask all workers to write a checkpoint and end; kill those that take too long, or all if asked again."""
    for worker in running:
        worker.process.terminate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(worker.process.poll() is None for worker in running):
        if stop.insisted or time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    for worker in running:
        worker.process.kill()
        worker.process.wait()


def _report(worker: Worker, failures: list[Failure], print_line: PrintLine, stopping: bool) -> None:
    task = worker.task
    name = task.cell.name
    if worker.process.returncode == 0:
        # Its own time would be wrong if another command has made the cell while it started.
        seconds = load_json(cell_folder(task.grid, name) / RESULT)["seconds"]
        print_line(f"{task.experiment.name} {name}: done in {seconds:.0f} s")
    elif not stopping:
        failures.append(failure := Failure(name, _reason(worker), cell_folder(task.grid, name) / LOG))
        print_line(f"{task.experiment.name} {failure} ({failure.log})")


def _reason(worker: Worker) -> str:
    """Its last error, or else its last line; that of a worker that was killed only says how far it was."""
    code, lines = worker.process.returncode, list(_last_lines(worker))
    if (error := next((line for line in lines if line.startswith(ERROR)), None)) is not None:
        return error.removeprefix(ERROR)
    end = f"ended with code {code}" if code > 0 else f"ended by signal {-code}"
    if not lines:
        return end
    return lines[0] if code > 0 else f"{end} after: {lines[0]}"
