"""Running a grid: cells that are done are not run again, several at once share a device, any moment may be the last.

A result is written when its cell is complete. Training inside a cell saves as every run does, so that a grid that
was interrupted goes on in the middle of a cell. A cell that fails says so and does not keep the others from running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mnemo import __version__
from mnemo.checkpoint import pick_device
from mnemo.errors import MnemoError, one_line
from mnemo.experiments.experiment import Budget, Cell, CellResult, Experiment
from mnemo.experiments.jobs import Place, Stopped, find_job
from mnemo.experiments.store import Found, cell_folder, missing, read_grid, save_cell
from mnemo.train import Monitor, Unwatched

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""For processes that save before they end."""
SECONDS_FILE = "seconds"


@dataclass(frozen=True)
class Ran:
    found: Found
    failures: tuple[str, ...]
    interrupted: bool = False


Tell = Callable[[str], None]


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores"


def versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return {"mnemo": __version__, "torch": str(torch.__version__), "python": python}


def run_cell(experiment: Experiment, cell: Cell, grid: Path, device: torch.device, monitor: Monitor) -> None:
    """Make one cell, here, and write its result. Seconds of earlier attempts count."""
    folder = cell_folder(grid, cell.name)
    folder.mkdir(parents=True, exist_ok=True)
    begin, before = time.monotonic(), _earlier_seconds(folder)
    try:
        values = find_job(cell.job)(cell.settings, Place(folder, grid, device, monitor))
    finally:
        seconds = round(before + time.monotonic() - begin, 2)
        (folder / SECONDS_FILE).write_text(f"{seconds}\n")
    save_cell(
        grid,
        CellResult(cell=cell, values=values, seconds=seconds, hardware=hardware(device), versions=versions()),
    )


def _earlier_seconds(folder: Path) -> float:
    try:
        return max(0.0, float((folder / SECONDS_FILE).read_text()))
    except (OSError, ValueError):
        return 0.0


def run_here(
    experiment: Experiment,
    budget: Budget,
    grid: Path,
    *,
    device: str = "auto",
    monitor: Monitor | None = None,
    tell: Tell = lambda line: None,
    only: Sequence[str] = (),
) -> Ran:
    """All cells that are not done, one after the other, in this process."""
    cells, watched, failures = experiment.cells(budget), monitor or Unwatched(), []
    where = pick_device(device)
    for cell in _due(experiment, budget, grid, only):
        blocked = _blocked(cell, cells, grid, experiment, budget)
        if blocked:
            failures.append(f"{cell.name}: {blocked} is not done")
            continue
        tell(_announce(cell, cells))
        try:
            run_cell(experiment, cell, grid, where, watched)
        except Stopped:
            return Ran(read_grid(grid, experiment, budget), tuple(failures), interrupted=True)
        except (MnemoError, RuntimeError) as error:
            failures.append(f"{cell.name}: {one_line(error)}")
            tell(f"cell {failures[-1]}")
    return Ran(read_grid(grid, experiment, budget), tuple(failures))


def _due(experiment: Experiment, budget: Budget, grid: Path, only: Sequence[str]) -> list[Cell]:
    cells = missing(experiment.cells(budget), read_grid(grid, experiment, budget).results)
    return [cell for cell in cells if not only or cell.name in only]


def _blocked(cell: Cell, cells: Sequence[Cell], grid: Path, experiment: Experiment, budget: Budget) -> str | None:
    """The first cell that must be done before this one and is not."""
    if not cell.after:
        return None
    done = {result.cell.name for result in read_grid(grid, experiment, budget).results.cells}
    return next((name for name in cell.after if name not in done), None)


def _announce(cell: Cell, cells: Sequence[Cell]) -> str:
    place = next(i for i, other in enumerate(cells, 1) if other.name == cell.name)
    labels = ", ".join(f"{name} {value}" for name, value in cell.labels.items())
    return f"[{place}/{len(cells)}] {cell.name}" + (f" ({labels})" if labels else "")


@dataclass
class _Worker:
    cell: Cell
    process: subprocess.Popen[bytes]
    begin: float


def run_together(
    experiment: Experiment,
    budget: Budget,
    grid: Path,
    *,
    jobs: int,
    device: str = "auto",
    tell: Tell = lambda line: None,
    out: Path,
) -> Ran:
    """All cells that are not done, `jobs` at a time, each in a process of its own, which logs to its folder."""
    cells = experiment.cells(budget)
    waiting, running, failures = _due(experiment, budget, grid, ()), [], []
    asked_to_stop = False

    def stop(number: int, frame: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        while (waiting and not asked_to_stop) or running:
            done = {result.cell.name for result in read_grid(grid, experiment, budget).results.cells}
            while not asked_to_stop and len(running) < jobs and (cell := _ready(waiting, done)):
                waiting.remove(cell)
                tell(_announce(cell, cells))
                running.append(_start(experiment, cell, budget, grid, device, out))
            if not running:
                failures += [f"{cell.name}: {cell.after} are not all done" for cell in waiting]
                break
            if asked_to_stop:
                _end(running)
            time.sleep(POLL_SECONDS)
            running, ended = _split(running)
            failures += [problem for worker in ended if (problem := _report(worker, grid, tell, asked_to_stop))]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return Ran(read_grid(grid, experiment, budget), tuple(failures), interrupted=asked_to_stop)


def _ready(waiting: Sequence[Cell], done: set[str]) -> Cell | None:
    return next((cell for cell in waiting if set(cell.after) <= done), None)


def _start(experiment: Experiment, cell: Cell, budget: Budget, grid: Path, device: str, out: Path) -> _Worker:
    folder = cell_folder(grid, cell.name)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "mnemo", "reproduce", experiment.name, "--budget", budget]
    command += ["--out", str(out), "--cell", cell.name, "--device", device]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    return _Worker(cell, process, time.monotonic())


def _split(running: Sequence[_Worker]) -> tuple[list[_Worker], list[_Worker]]:
    ended = [worker for worker in running if worker.process.poll() is not None]
    return [worker for worker in running if worker not in ended], ended


def _end(running: Sequence[_Worker]) -> None:
    """Ask for checkpoints, and wait for them."""
    for worker in running:
        worker.process.terminate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for worker in running:
        try:
            worker.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def _report(worker: _Worker, grid: Path, tell: Tell, stopping: bool) -> str | None:
    code, name = worker.process.returncode, worker.cell.name
    if code == 0:
        tell(f"{name}: done in {time.monotonic() - worker.begin:.0f} s")
        return None
    if stopping:
        return None
    log = cell_folder(grid, name) / "log.txt"
    said = log.read_text(errors="replace").strip().splitlines()
    problem = f"{name}: {said[-1] if said else f'ended with code {code}'}"
    tell(f"{problem} ({log})")
    return problem
