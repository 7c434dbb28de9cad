"""The papers' experiments: claims, the measurements that test them, verdicts.

mnemo reproduce --list
mnemo reproduce rmt-copy --budget small
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection

from mnemo.errors import MnemoError, unknown
from mnemo.papers.experiment import BUDGETS, Budget, Cell, CellResult, Experiment, Results
from mnemo.papers.names import NAMES

__all__ = [
    "BUDGETS",
    "NAMES",
    "Budget",
    "Cell",
    "CellResult",
    "Experiment",
    "Results",
    "check_name",
    "every_experiment",
    "find_experiment",
]


ORDER = ("xl", "long_range", "rmt", "lamemo")


def every_experiment() -> dict[str, Experiment]:
    """Experiments of all families by name, older papers first."""
    found: dict[str, Experiment] = {}
    families = {each.name for each in pkgutil.iter_modules(__path__) if each.ispkg}
    for family in sorted(families, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)):
        module = importlib.import_module(f"mnemo.papers.{family}")
        for experiment in module.EXPERIMENTS:
            if experiment.name in found:
                raise ValueError(f"two experiments are called {experiment.name}")
            found[experiment.name] = experiment
    return found


def find_experiment(name: str) -> Experiment:
    known = every_experiment()
    check_name(name, known)
    return known[name]


def check_name(name: str, known: Collection[str] | None = None) -> None:
    """Raise an error with a hint if there is no experiment of this name; None: among `NAMES`."""
    known = NAMES if known is None else known
    if name in known:
        return
    longer = [other for other in known if name and other.startswith(f"{name.rstrip('-')}-")]
    if longer:
        raise MnemoError(f"'{name}' is the beginning of several experiments: {', '.join(longer)}")
    raise unknown("experiment", name, known, "mnemo reproduce --list")
