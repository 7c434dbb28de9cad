"""Running a grid: cells that are done are not run again, and any moment may be the last.

A result is written when its cell is complete. Training inside a cell saves as every run does, so that a grid that
was interrupted goes on in the middle of a cell. A cell that fails says so and does not keep the others from running.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mnemo import __version__
from mnemo.errors import MnemoError, one_line
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment
from mnemo.papers.jobs import Place, Stopped, find_job
from mnemo.papers.store import Found, cell_folder, missing, read_grid, save_cell, take_over
from mnemo.storage.weights import pick_device
from mnemo.training import Monitor, Unwatched

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


def run_cell(cell: Cell, cells: Sequence[Cell], grid: Path, device: torch.device, monitor: Monitor) -> None:
    """Make one of an experiment's cells, here, and write its result. Seconds of earlier attempts count.

    What another experiment has measured is taken over, with its trained model.
    """
    if known := take_over(grid, cell, cells):
        monitor.note(f"{cell.name} is known: {known}")
        return
    folder = cell_folder(grid, cell.name)
    folder.mkdir(parents=True, exist_ok=True)
    _free_memory(device)
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


def _free_memory(device: torch.device) -> None:
    """What an earlier cell of this process has left on the device would count as this one's."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


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
) -> Ran:
    """All cells that are not done, one after the other, in this process."""
    cells, watched, failures = experiment.cells(budget), monitor or Unwatched(), []
    where = pick_device(device)
    for cell in due(experiment, budget, grid):
        blocked = _blocked(cell, grid, experiment, budget)
        if blocked:
            failures.append(f"{cell.name}: {blocked} is not done")
            continue
        tell(announce(cell, cells))
        try:
            run_cell(cell, cells, grid, where, watched)
        except (Stopped, KeyboardInterrupt):
            return Ran(read_grid(grid, experiment, budget), tuple(failures), interrupted=True)
        except (MnemoError, RuntimeError) as error:
            failures.append(f"{cell.name}: {one_line(error)}")
            tell(f"cell {failures[-1]}")
    return Ran(read_grid(grid, experiment, budget), tuple(failures))


def due(experiment: Experiment, budget: Budget, grid: Path) -> list[Cell]:
    """Cells that have no result yet."""
    return missing(experiment.cells(budget), read_grid(grid, experiment, budget).results)


def _blocked(cell: Cell, grid: Path, experiment: Experiment, budget: Budget) -> str | None:
    """The first cell that must be done before this one and is not."""
    if not cell.after:
        return None
    done = {result.cell.name for result in read_grid(grid, experiment, budget).results.cells}
    return next((name for name in cell.after if name not in done), None)


def announce(cell: Cell, cells: Sequence[Cell]) -> str:
    place = next(i for i, other in enumerate(cells, 1) if other.name == cell.name)
    labels = ", ".join(f"{name} {value}" for name, value in cell.labels.items())
    return f"[{place}/{len(cells)}] {cell.name}" + (f" ({labels})" if labels else "")
