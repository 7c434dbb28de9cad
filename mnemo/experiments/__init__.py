"""The papers' experiments: claims, the measurements that test them, verdicts.

mnemo reproduce --list
mnemo reproduce rmt-copy --budget small
"""

from __future__ import annotations

import importlib
import pkgutil

from mnemo.errors import unknown
from mnemo.experiments.experiment import BUDGETS, Budget, Cell, CellResult, Experiment, Results

__all__ = ["BUDGETS", "Budget", "Cell", "CellResult", "Experiment", "Results", "every_experiment", "find_experiment"]


def every_experiment() -> dict[str, Experiment]:
    """By name, of all the packages in here."""
    found: dict[str, Experiment] = {}
    for family in (each.name for each in pkgutil.iter_modules(__path__) if each.ispkg):
        module = importlib.import_module(f"mnemo.experiments.{family}")
        for experiment in module.EXPERIMENTS:
            if experiment.name in found:
                raise ValueError(f"two experiments are called {experiment.name}")
            found[experiment.name] = experiment
    return found


def find_experiment(name: str) -> Experiment:
    known = every_experiment()
    if name not in known:
        raise unknown("experiment", name, known, "mnemo reproduce --list")
    return known[name]
