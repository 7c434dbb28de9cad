"""Results on disk: one file for each cell while a grid runs, and one file for the whole grid.

OUT/NAME/BUDGET/cells/CELL/result.json    next to the cell's training run
OUT/NAME/BUDGET/results.json              all cells
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError, one_line
from mnemo.files.json_file import load_json, write_json
from mnemo.files.safe_load import is_finite
from mnemo.papers.experiment import Budget, Cell, CellResult, Experiment, Results

CELLS, RESULT, RESULTS, RUN = "cells", "result.json", "results.json", "run"


@dataclass(frozen=True)
class Found:
    results: Results
    problems: tuple[str, ...]
    """Stored results that are left out because they are broken or were made with other settings."""


OLD_SELF_TEST = "smoke"
"""Folder of self-tests whose results were stored under their former name."""


def grid_folder(out: Path, name: str, budget: Budget) -> Path:
    folder = out / name / budget
    old = out / name / OLD_SELF_TEST
    return old if budget == "self-test" and old.exists() and not folder.exists() else folder


def cell_folder(grid: Path, cell: str) -> Path:
    return grid / CELLS / cell


def save_cell(grid: Path, result: CellResult) -> None:
    folder = cell_folder(grid, result.cell.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, _to_json(result))


def unpack(grid: Path, results: Results, names: Collection[str]) -> None:
    """Write the files of these cells, if they have none."""
    for result in results.cells:
        folder = cell_folder(grid, result.cell.name)
        if result.cell.name in names and not (folder / RESULT).exists():
            _remove_broken_link(folder)
            save_cell(grid, result)


def _remove_broken_link(folder: Path) -> None:
    """A link to the cell of another experiment, which has been removed."""
    if folder.is_symlink() and not folder.exists():
        folder.unlink()


def save_grid(grid: Path, experiment: Experiment, results: Results) -> Path:
    path = grid / RESULTS
    cells = [_to_json(result) for result in results.cells]
    write_json(path, {"experiment": experiment.name, "budget": results.budget, "cells": cells})
    return path


def _to_json(result: CellResult) -> dict[str, Any]:
    cell = result.cell
    return {
        "cell": cell.name,
        "job": cell.job,
        "labels": cell.labels,
        "settings": cell.settings,
        "after": list(cell.after),
        "values": result.values,
        "seconds": result.seconds,
        "hardware": result.hardware,
        "versions": result.versions,
        **({} if result.at_once is None else {"at_once": result.at_once}),
    }


def load_grid(grid: Path, experiment: Experiment, budget: Budget) -> Found:
    """Stored results of a grid: from the folders of its cells, or else from its `results.json`."""
    cells = experiment.cells(budget)
    kept, problems = _load_results(grid / RESULTS)
    found = []
    for cell in cells:
        path = cell_folder(grid, cell.name) / RESULT
        try:
            data = load_json(path) if path.exists() else kept.get(cell.name)
            if data is not None:
                found.append(_result(data, cell))
        except MnemoError as error:
            problems.append(_problem(error, path if path.exists() else grid / RESULTS, cell))
    return Found(Results(budget=budget, cells=found), tuple(problems))


def _problem(error: MnemoError, path: Path, cell: Cell) -> str:
    message = one_line(error)
    return message if str(path) in message else f"{path}, cell {cell.name}: {message}"


def _load_results(path: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    if not path.exists():
        return {}, []
    try:
        data = load_json(path)
        cells = data["cells"]
        return {cell["cell"]: cell for cell in cells}, []
    except MnemoError as error:
        return {}, [one_line(error)]
    except (KeyError, TypeError):
        return {}, [f"{path} lists no cells"]


def _result(data: dict[str, Any], cell: Cell) -> CellResult:
    made = _made(data, cell)
    if made.fingerprint != cell.fingerprint:
        raise MnemoError("it was made with other settings")
    values, seconds, versions = data.get("values"), data.get("seconds"), data.get("versions")
    if not (isinstance(values, dict) and values and is_finite(seconds) and isinstance(versions, dict)):
        raise MnemoError("it has no values, seconds and versions")
    at_once = data.get("at_once")
    return CellResult(
        cell=made,
        values=values,
        seconds=float(seconds),
        hardware=str(data.get("hardware", "")),
        versions=versions,
        at_once=at_once if isinstance(at_once, int) else None,
    )


def _made(data: dict[str, Any], cell: Cell) -> Cell:
    """The cell with the settings that are stored in its result."""
    job, settings, after = data.get("job"), data.get("settings"), data.get("after")
    if not (isinstance(job, str) and isinstance(settings, dict) and isinstance(after, list)):
        raise MnemoError("it does not say what was measured")
    return replace(cell, job=job, settings=settings, after=tuple(after))


def reuse(grid: Path, cell: Cell, cells: Sequence[Cell]) -> Path | None:
    """Link the cell's folder to that of another experiment with the same measurement; None if there is none.

    If others of `cells` need the trained model, it must still exist there.
    """
    folder = cell_folder(grid, cell.name)
    if is_done(grid, cell):  # by another process
        return None
    if folder.is_symlink():  # its target has been removed, or was made with other settings
        folder.unlink()
    needed = any(cell.name in other.after for other in cells)
    known = None if cell.after or folder.exists() else _same_measurement(grid, cell, run_needed=needed)
    if known is not None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process has begun the cell
            folder.symlink_to(os.path.relpath(known, folder.parent), target_is_directory=True)
    return known


def _same_measurement(grid: Path, cell: Cell, run_needed: bool) -> Path | None:
    for path in sorted(grid.parent.parent.glob(f"*/{grid.name}/{CELLS}/*/{RESULT}")):
        if run_needed and not (path.parent / RUN).exists():
            continue
        try:
            _result(load_json(path), cell)
        except MnemoError:
            continue
        return path.parent.resolve()
    return None


def is_done(grid: Path, cell: Cell) -> bool:
    """Whether the cell's folder has its result, made with these settings."""
    path = cell_folder(grid, cell.name) / RESULT
    try:
        _result(load_json(path), cell)
    except MnemoError:
        return False
    return True


def missing(cells: Sequence[Cell], results: Results) -> list[Cell]:
    done = {result.cell.name for result in results.cells}
    return [cell for cell in cells if cell.name not in done]
