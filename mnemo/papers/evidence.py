"""Everything that the overview of the papers is made of: stored results, and measurements outside of experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mnemo.files.json_file import load_json
from mnemo.papers import every_experiment
from mnemo.papers.experiment import Budget, Experiment, Results, Verdict
from mnemo.papers.pages import has_results, verdicts_of
from mnemo.papers.store import Found, grid_folder, load_grid


class Evidence:
    """Results are loaded once, when they are first used."""

    def __init__(
        self,
        folders: Sequence[Path],
        measurements: Path | None = None,
        known: Mapping[tuple[str, Budget], Found] | None = None,
    ) -> None:
        """`folders`: of results, the first with an experiment counts; `measurements`: a folder of JSON files; `known`:
        results that are loaded already."""
        self._folders = folders
        self._measurements = measurements
        self._found: dict[tuple[str, Budget], Found | None] = {**(known or {})}

    @cached_property
    def experiments(self) -> dict[str, Experiment]:
        return every_experiment()

    def found(self, name: str, budget: Budget) -> Found | None:
        """Stored results of an experiment, with the problems of those that are left out; None without results."""
        if (name, budget) not in self._found:
            self._found[name, budget] = self._load(name, budget)
        return self._found[name, budget]

    def _load(self, name: str, budget: Budget) -> Found | None:
        experiment = self.experiments.get(name)
        if experiment is None:
            return None
        folder = next((each for each in self._folders if has_results(each, experiment, budget)), None)
        return None if folder is None else load_grid(grid_folder(folder, name, budget), experiment, budget)

    def results(self, name: str, budget: Budget) -> Results | None:
        found = self.found(name, budget)
        return None if found is None or not found.results.cells else found.results

    def verdict(self, name: str, budget: Budget, claim: str) -> Verdict | None:
        """The verdict on one claim of an experiment; None without results."""
        found = self.found(name, budget)
        return (
            None if found is None else {each.claim: each for each in verdicts_of(self.experiments[name], found)}[claim]
        )

    def measurement(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the folder of measurements; None if there is none of this name."""
        path = None if self._measurements is None else self._measurements / f"{name}.json"
        return load_json(path) if path is not None and path.exists() else None
