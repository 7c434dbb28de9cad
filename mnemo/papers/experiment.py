"""An experiment: claims of a paper, the measurements that test them, and verdicts.

A measurement (`Cell`) is plain data, so that another process can make it, a stored result can be recognised by its
settings, and both can be stored together. Verdicts, figures and tables are functions of the results alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mnemo.config import digest
from mnemo.report.figure import Figure
from mnemo.report.findings import Sample, Table, Verdict

Budget = Literal["self-test", "laptop", "small", "gpu", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
PAPER_BUDGETS: tuple[Budget, ...] = ("self-test", "small", "paper")
"""Those of the papers' tables and figures."""
SELF_TEST = "self-test: shows that the code runs, says nothing about the claim"
ABOUT_SELF_TEST = (
    "A self-test: tiny models ran about two steps, on other data or less of it. Titles, captions and names of rows and "
    "columns are those of the real experiment, whose claim is:"
)
"""First words of its page, before the claim."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement of a grid."""

    name: str
    """Unique in its experiment and budget; a folder name."""
    job: str
    """Name of the registered job that makes it."""
    settings: dict[str, Any]
    """JSON; the result depends on nothing else."""
    labels: dict[str, Any]
    """Its place in the grid: model, length, seed."""
    after: tuple[str, ...] = ()
    """Cells of the same grid whose folders it reads."""
    alone: bool = False
    """Whether it measures time, so that no other cell may run at the same time."""

    @property
    def fingerprint(self) -> str:
        """Equal for measurements that give the same result up to rounding."""
        ignored = NEVER_COUNTED if self.alone else NEVER_COUNTED + SPEED_ONLY
        settings = _without(ignored, self.settings)
        return digest({"job": self.job, "settings": settings, "after": list(self.after)})


SPEED_ONLY = ("compile", "cuda_graph")
"""Settings that change only the speed; they count only in cells that measure time."""


NEVER_COUNTED = ("checkpoint_minutes", "health")
"""Settings that change no number of a cell: when checkpoints are saved, and how a run goes on after a divergence."""
AS_STORED = {"on_nan": "stop"}
"""Settings that are the same in all cells: a divergence is the result of a cell, and ends its run."""
OFF = {
    "z_loss": 0.0,
    "logit_cap": None,
    "clip_mean": None,
    "update_clip": None,
    "first_bias": "normal",
    "largest_root": 100,
}
"""Settings that stored results do not have, and the values that change nothing."""


def _without(ignored: Sequence[str], value: Any) -> Any:
    if isinstance(value, list):
        return [_without(ignored, part) for part in value]
    if not isinstance(value, Mapping):
        return value
    counted = [name for name in value if name not in ignored and not (name in OFF and value[name] == OFF[name])]
    return {name: _without(ignored, AS_STORED.get(name, value[name])) for name in counted}


@dataclass(frozen=True, kw_only=True)
class CellResult:
    cell: Cell
    values: dict[str, Any]
    seconds: float
    """Sum over all attempts."""
    hardware: str
    versions: dict[str, str]
    at_once: int | None = None
    """Cells that shared the machine, at most: 1 if it was alone. None in older results, which do not say."""

    @property
    def labels(self) -> dict[str, Any]:
        return self.cell.labels


@dataclass(frozen=True, kw_only=True)
class Results:
    """All results of a grid so far."""

    budget: Budget
    cells: Sequence[CellResult]

    def select(self, **labels: Any) -> list[CellResult]:
        """Results that have all these labels."""
        return [each for each in self.cells if has_labels(each.labels, labels)]

    def one(self, name: str) -> CellResult | None:
        return next((each for each in self.cells if each.cell.name == name), None)

    def values(self, key: str, **labels: Any) -> list[float]:
        """The number at `key` of every selected result that has one; a dot in `key` goes into an object."""
        found = (look_up(each.values, key) for each in self.select(**labels))
        return [value for value in found if isinstance(value, (int, float))]


def has_labels(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in labels and labels[name] == value for name, value in wanted.items())


def look_up(values: Any, key: str) -> Any:
    """`look_up({"a": {"b": 1}}, "a.b")` is 1; None if a name is missing."""
    for name in key.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return None
        values = values[name]
    return values


def objects_of(value: Any, kind: str) -> Iterator[Mapping[str, Any]]:
    """Every object in a cell's settings whose `type` is `kind`, in order; not those inside of another such object."""
    if isinstance(value, Mapping) and value.get("type") == kind:
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from objects_of(item, kind)


def nothing(results: Results) -> list[Any]:
    return []


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Claims of a paper and how they are tested."""

    name: str
    title: str
    paper: str
    covers: tuple[str, ...]
    """Tables and figures of the paper."""
    claim: str
    """One or two sentences."""
    cells: Callable[[Budget], list[Cell]]
    verdicts: Callable[[Results], list[Verdict]]
    """Also of an incomplete grid; claims without results are open."""
    figures: Callable[[Results], list[Figure]] = nothing
    tables: Callable[[Results], list[Table]] = nothing
    samples: Callable[[Results], list[Sample]] = nothing
    budgets: tuple[Budget, ...] = PAPER_BUDGETS
    """Those that it can run: the self-test, then the default."""
    notes: tuple[str, ...] = field(default=())
    """Differences from the paper, with reasons."""
