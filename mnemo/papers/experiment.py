"""What an experiment is: a claim of a paper, the measurements that test it, and what they say.

A measurement (`Cell`) is plain data, so that it can be made in another process, recognised when it has been made, and
written down beside its result. Verdicts, figures and tables are functions of the results alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mnemo.config import digest
from mnemo.report.figure import Figure
from mnemo.report.findings import Sample, Table, Verdict

Budget = Literal["smoke", "small", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement of a grid."""

    name: str
    """Unique in its experiment and budget; a folder name."""
    job: str
    """Registered job that makes it."""
    settings: dict[str, Any]
    """JSON: all that the result depends on."""
    labels: dict[str, Any]
    """Where it stands in the grid: model, length, seed."""
    after: tuple[str, ...] = ()
    """Cells of the same grid whose folders it reads."""
    alone: bool = False
    """It measures time: nothing else may run beside it."""

    @property
    def fingerprint(self) -> str:
        """The same for measurements that must give the same result, up to rounding."""
        settings = self.settings if self.alone else _without_speed(self.settings)
        return digest({"job": self.job, "settings": settings, "after": list(self.after)})


SPEED_ONLY = ("compile", "cuda_graph")
"""Settings that change how fast something is computed, but not what: of no interest where no time is measured."""


def _without_speed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_speed(part) for name, part in value.items() if name not in SPEED_ONLY}
    return [_without_speed(part) for part in value] if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class CellResult:
    cell: Cell
    values: dict[str, Any]
    seconds: float
    """Of all the processes that worked on it."""
    hardware: str
    versions: dict[str, str]

    @property
    def labels(self) -> dict[str, Any]:
        return self.cell.labels


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a grid has given so far."""

    budget: Budget
    cells: Sequence[CellResult]

    def select(self, **labels: Any) -> list[CellResult]:
        """Those that have all these labels."""
        return [each for each in self.cells if has_labels(each.labels, labels)]

    def one(self, name: str) -> CellResult | None:
        return next((each for each in self.cells if each.cell.name == name), None)

    def values(self, key: str, **labels: Any) -> list[float]:
        """One value of each of `select(**labels)` that has it; `scores.test.loss` looks into objects."""
        found = (look_up(each.values, key) for each in self.select(**labels))
        return [value for value in found if isinstance(value, (int, float))]


def has_labels(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in labels and labels[name] == value for name, value in wanted.items())


def look_up(values: Any, key: str) -> Any:
    """`look_up({"a": {"b": 1}}, "a.b")` is 1; None where there is nothing."""
    for name in key.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return None
        values = values[name]
    return values


def nothing(results: Results) -> list[Any]:
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A claim of a paper and how it is tested."""

    name: str
    title: str
    paper: str
    covers: tuple[str, ...]
    """Tables and figures of the paper."""
    claim: str
    """What is tested, in one or two sentences."""
    cells: Callable[[Budget], list[Cell]]
    verdicts: Callable[[Results], list[Verdict]]
    """Of grids that are not complete too: what is not known yet is open."""
    figures: Callable[[Results], list[Figure]] = nothing
    tables: Callable[[Results], list[Table]] = nothing
    samples: Callable[[Results], list[Sample]] = nothing
    notes: tuple[str, ...] = field(default=())
    """What differs from the paper, and why."""
