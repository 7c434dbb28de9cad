"""Run the cells of a grid that have no result yet, in this process.

A result is written when its cell is complete. Training inside a cell writes checkpoints like every run, so that an
interrupted grid resumes in the middle of a cell. If a cell fails, its error is reported and the others are run.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from mnemo import __version__
from mnemo.errors import MnemoError, one_line
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment
from mnemo.papers.jobs import Place, Stopped, find_job
from mnemo.papers.store import Found, cell_folder, is_done, load_grid, missing, reuse, save_cell, unpack
from mnemo.storage.run_folder import InUse, in_use, locked
from mnemo.storage.weights import pick_device
from mnemo.training import Monitor, Unwatched

SECONDS_FILE = "seconds"
POLL_SECONDS = 0.1


class Failure(NamedTuple):
    """A cell without a result. The reason is printed when it fails, so that an error at the end only names the cell."""

    cell: str
    reason: str
    log: Path | None = None
    """What its process has printed, if it had one."""

    def __str__(self) -> str:
        return f"{self.cell}: {self.reason}"

    @property
    def place(self) -> str:
        return self.cell if self.log is None else f"{self.cell} ({self.log})"


@dataclass(frozen=True)
class Ran:
    found: Found
    failures: tuple[Failure, ...]
    signal: int | None = None
    """What stopped the grid before its end, if it was stopped."""

    @property
    def interrupted(self) -> bool:
        return self.signal is not None


PrintLine = Callable[[str], None]


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores"


def versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return {"mnemo": __version__, "torch": str(torch.__version__), "python": python}


def run_cell(
    cell: Cell,
    cells: Sequence[Cell],
    grid: Path,
    device: torch.device,
    monitor: Monitor,
    reuse_others: bool = True,
    at_once: int = 1,
) -> None:
    """Make a cell and write its result. The seconds of earlier attempts are added.

    `reuse_others`: if another experiment has made the same measurement, its result and its trained model are reused.
    `at_once`: cells that share the machine, which is stored.
    """
    if reuse_others and (known := reuse(grid, cell, cells)):
        monitor.note(f"{cell.name}: reuses {known}")
        return
    folder = cell_folder(grid, cell.name)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not is_done(grid, cell):
            _make(cell, grid, device, monitor, at_once)


def _make(cell: Cell, grid: Path, device: torch.device, monitor: Monitor, at_once: int) -> None:
    folder = cell_folder(grid, cell.name)
    _free_memory(device)
    begin, (before, shared) = time.monotonic(), _earlier(folder)
    at_once = max(at_once, shared)
    try:
        values = find_job(cell.job)(cell.settings, Place(folder, grid, device, monitor))
    finally:
        seconds = round(before + time.monotonic() - begin, 2)
        (folder / SECONDS_FILE).write_text(f"{seconds} {at_once}\n")
    result = CellResult(
        cell=cell,
        values=values,
        seconds=seconds,
        hardware=hardware(device),
        versions=versions(),
        at_once=at_once,
    )
    save_cell(grid, result)


def _free_memory(device: torch.device) -> None:
    """Release memory of earlier cells, which would be counted in this one's peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _earlier(folder: Path) -> tuple[float, int]:
    """Seconds of earlier attempts, and the most cells that shared the machine, which older versions did not write."""
    try:
        seconds, *at_once = (folder / SECONDS_FILE).read_text().split()
        return max(0.0, float(seconds)), int(at_once[0]) if at_once else 1
    except (OSError, ValueError):
        return 0.0, 1


def run_here(
    experiment: Experiment,
    budget: Budget,
    grid: Path,
    *,
    device: str = "auto",
    monitor: Monitor | None = None,
    print_line: PrintLine = lambda line: None,
    reuse_others: bool = True,
) -> Ran:
    """Run all unfinished cells one after the other in this process; `reuse_others` as in `run_cell`."""
    cells, watched, failures = experiment.cells(budget), monitor or Unwatched(), list[Failure]()

    def fail(cell: Cell, reason: str) -> None:
        failures.append(Failure(cell.name, reason))
        print_line(f"cell {failures[-1]}")

    where, waiting = pick_device(device), continue_grid(experiment, budget, grid)
    stopped_by = None
    try:
        while waiting:
            cell = _next_free(waiting, grid, print_line)
            waiting.remove(cell)
            if blocked := _blocked(cell, grid, experiment, budget):
                fail(cell, f"{blocked} is not done")
                continue
            if is_done(grid, cell):
                print_line(f"cell {cell.name}: made by another command")
                continue
            print_line(announce(cell, cells))
            try:
                run_cell(cell, cells, grid, where, watched, reuse_others)
            except (MnemoError, RuntimeError) as error:
                if isinstance(error, InUse) and error.folder == cell_folder(grid, cell.name):
                    waiting.insert(0, cell)  # another command has taken it at the same moment
                    continue
                fail(cell, one_line(error))
    except Stopped as stopped:
        stopped_by = stopped.signal
    except KeyboardInterrupt:
        stopped_by = int(signal.SIGINT)
    return Ran(load_grid(grid, experiment, budget), tuple(failures), stopped_by)


def is_made_elsewhere(grid: Path, cell: Cell) -> bool:
    """Whether another process is making the cell."""
    return in_use(cell_folder(grid, cell.name))


def _next_free(waiting: Sequence[Cell], grid: Path, print_line: PrintLine) -> Cell:
    """The first cell that no other process is making and that reads none that waits, as soon as there is one."""
    told = False
    while True:
        elsewhere = [cell.name for cell in waiting if is_made_elsewhere(grid, cell)]
        if not elsewhere:
            return waiting[0]
        unmade = {cell.name for cell in waiting}
        for cell in waiting:
            if cell.name not in elsewhere and not unmade.intersection(cell.after):
                return cell
        if not told:
            told = True
            print_line(f"waiting for another command, which is making {', '.join(elsewhere)}")
        time.sleep(POLL_SECONDS)


def continue_grid(experiment: Experiment, budget: Budget, grid: Path) -> list[Cell]:
    """Cells that have no result yet, after what they read of others has been put into folders: on another machine, only
    `results.json` has it."""
    results = load_grid(grid, experiment, budget).results
    cells = missing(experiment.cells(budget), results)
    unpack(grid, results, {name for cell in cells for name in cell.after})
    return cells


def _blocked(cell: Cell, grid: Path, experiment: Experiment, budget: Budget) -> str | None:
    """The first unfinished cell that must come before this one."""
    if not cell.after:
        return None
    done = {result.cell.name for result in load_grid(grid, experiment, budget).results.cells}
    return next((name for name in cell.after if name not in done), None)


def announce(cell: Cell, cells: Sequence[Cell]) -> str:
    place = next(i for i, other in enumerate(cells, 1) if other.name == cell.name)
    labels = ", ".join(f"{name} {value}" for name, value in cell.labels.items())
    return f"[{place}/{len(cells)}] {cell.name}" + (f" ({labels})" if labels else "")
