"""One grid for all papers: the rows of a table, each trained with several seeds, at one budget.

A grid is built for a budget, so rows, seeds and claims may differ between budgets. Claims, tables and figures name rows
by their key, which is the same at every budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from mnemo.papers.experiment import Cell, CellResult, Results, look_up
from mnemo.papers.jobs import training_settings
from mnemo.recipes.recipe import Recipe
from mnemo.units import bits, perplexity

BySeed = Callable[[int], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of every scored cell: where it is stored, how it is shown, and which direction is better."""

    unit: str
    digits: int
    shown: Callable[[float], float] = float
    """From the stored number to `unit`."""
    key: str = "scores.test.loss"
    """Of a cell's values. Losses are stored, and compared, in nats."""
    scale: str = "nats"
    """Unit of the stored number."""
    higher_is_better: bool = False
    part: str = ""
    """Appended to the name of a row's cell, where another cell than the trained one holds the number."""

    def of(self, result: CellResult | None) -> float | None:
        value = None if result is None else look_up(result.values, self.key)
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def text(self, values: Sequence[float]) -> str:
        """Mean in `unit`, with the standard deviation of several values."""
        converted = [self.shown(value) for value in values]
        mean = f"{fmean(converted):,.{self.digits}f}"
        return mean if len(converted) < 2 else f"{mean} ± {stdev(converted):.{self.digits}f}"


BPC = Measure(unit="bpc", digits=4, shown=bits)
PPL = Measure(unit="ppl", digits=2, shown=perplexity)
ACCURACY = Measure(unit="accuracy", digits=3, key="character_accuracy", scale="accuracy", higher_is_better=True)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a model that is trained once for each seed."""

    key: str
    """How claims, tables and figures refer to it; the same at every budget."""
    name: str
    """Of its cells, with the seed appended as in `pattern`."""
    label: str
    """In tables and figures."""
    seeds: Sequence[int]
    settings: BySeed
    """Of its cell, by seed."""
    job: str = "train"
    labels: Mapping[str, Any] = field(default_factory=dict)
    """Of its cells, besides the seed."""
    after: tuple[str, ...] = ()
    """Cells of the same grid whose folders its cells read."""
    paper: tuple[str, ...] = ()
    """Published values, in the order of the table's columns for them."""
    color: int | None = None
    """The same in all figures of a page; by order unless given."""
    pattern: str = "{name}-seed{seed}"

    def cell_name(self, seed: int) -> str:
        return self.pattern.format(name=self.name, seed=seed)

    def cell(self, seed: int) -> Cell:
        return Cell(
            name=self.cell_name(seed),
            job=self.job,
            settings=self.settings(seed),
            labels={**self.labels, "seed": seed},
            after=self.after,
        )


def training(recipe: Recipe, scores: Mapping[str, Mapping[str, Any]] | None = None) -> BySeed:
    """Settings of the job `train`: the recipe with another seed, then the scores."""

    def settings(seed: int) -> dict[str, Any]:
        return training_settings(replace(recipe, train=replace(recipe.train, seed=seed)), scores)

    return settings


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows x seeds of one budget, and the measure that they are compared by."""

    rows: Sequence[Row] = ()
    measure: Measure = BPC
    first: Sequence[Cell] = ()
    """Cells that rows read, made before all others: a shuffled corpus, for example."""
    last: Sequence[Cell] = ()
    """Cells that read trained rows, made after all others: timings and searches, for example."""

    @property
    def cells(self) -> list[Cell]:
        """Seed by seed, so that an interrupted grid has a first result of every row."""
        seeds = sorted({seed for row in self.rows for seed in row.seeds})
        trained = [row.cell(seed) for seed in seeds for row in self.rows if seed in row.seeds]
        return [*self.first, *trained, *self.last]

    def row(self, key: str) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)

    def label(self, key: str) -> str:
        row = self.row(key)
        return key if row is None else row.label

    def by_seed(self, results: Results, key: str, measure: Measure | None = None) -> dict[int, float]:
        """The measured numbers of a row; empty if this budget does not train it."""
        row, measure = self.row(key), measure or self.measure
        found = {} if row is None else {seed: measure.of(each) for seed, each in self.found(results, row, measure.part)}
        return {seed: value for seed, value in found.items() if value is not None}

    @staticmethod
    def found(results: Results, row: Row, part: str = "") -> list[tuple[int, CellResult]]:
        """A row's results that have values, by seed."""
        cells = ((seed, results.one(f"{row.cell_name(seed)}{part}")) for seed in row.seeds)
        return [(seed, each) for seed, each in cells if each is not None and each.values]

    def missing(self, results: Results, keys: Sequence[str], measure: Measure | None = None) -> str | None:
        """Why these rows cannot be compared yet; None if all have a result."""
        absent = [key for key in keys if self.row(key) is None]
        if absent:
            return f"this budget does not train: {', '.join(absent)}"
        unmeasured = [self.label(key) for key in keys if not self.by_seed(results, key, measure)]
        return f"not measured yet: {', '.join(unmeasured)}" if unmeasured else None
