"""Stored results stay valid: every cell of results/ is recognised by its fingerprint, and no cell changes silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mnemo.config import digest
from mnemo.papers import BUDGETS, every_experiment, find_experiment
from mnemo.papers.store import RESULTS, load_grid

FOLDER = Path(__file__).parents[2] / "results"
STORED = sorted(FOLDER.glob(f"*/*/{RESULTS}"))
UNFINISHED = sorted((FOLDER / "unfinished").glob(f"*/*/{RESULTS}"))
"""Of experiments some of whose cells are done: no page reads them."""
KNOWN = Path(__file__).with_name("cell_digests.json")


def cell_digests() -> dict[str, dict[str, str]]:
    """One digest of all cell names and fingerprints, for each experiment and budget."""
    return {
        name: {
            budget: digest({cell.name: cell.fingerprint for cell in experiment.cells(budget)})
            for budget in experiment.budgets
        }
        for name, experiment in every_experiment().items()
    }


@pytest.mark.parametrize("path", [*STORED, *UNFINISHED], ids=lambda path: path.parent.parent.name)
def test_every_stored_cell_is_found_with_its_fingerprint(path: Path) -> None:
    grid = path.parent
    budget = BUDGETS[BUDGETS.index(grid.name)]  # type: ignore[arg-type]
    experiment = find_experiment(grid.parent.name)
    stored = {cell["cell"]: cell["labels"] for cell in json.loads(path.read_text())["cells"]}
    found = load_grid(grid, experiment, budget)
    assert found.problems == ()
    assert {each.cell.name: json.loads(json.dumps(each.labels)) for each in found.results.cells} == stored
    cells = {cell.name for cell in experiment.cells(budget)}
    assert stored.keys() < cells if path in UNFINISHED else stored.keys() == cells


NOT_COMPLETE = {"gpu-quadratic"}


def test_every_experiment_that_has_run_has_stored_results() -> None:
    assert {path.parent.parent.name for path in STORED} == every_experiment().keys() - NOT_COMPLETE


def test_no_cell_changed_its_name_or_settings() -> None:
    """A change that is meant to change cells writes the file again: `python tests/papers/test_stored_results.py`."""
    assert cell_digests() == json.loads(KNOWN.read_text())


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(cell_digests(), indent=1) + "\n")
