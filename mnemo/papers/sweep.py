"""A sweep: one recipe with several memories and seeds on one text, judged by the same rule as the papers' experiments.

Pairs share seed, text order and, as far as the memories allow, first weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from mnemo.config import to_json
from mnemo.errors import plural
from mnemo.papers.experiment import CellResult, Experiment, Results
from mnemo.papers.figures import learning_curves, score_bars
from mnemo.papers.grid import Grid, Measure, Row, training
from mnemo.papers.intervals import t_quantile
from mnemo.papers.judge import Better, Claim, judge
from mnemo.papers.pages import build_page
from mnemo.papers.store import Found
from mnemo.papers.tables import Column, cell_label, grid_table, label, num_seeds
from mnemo.recipes.memory_words import memory_in_words
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.report.experiment_page import ExperimentPage
from mnemo.report.findings import Table

BUDGET = "small"
"""Experiments need a budget; a sweep has one only, that of its recipe."""
NO_MEMORY = "none"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    name: str
    text: str
    """Name of the text."""
    recipes: Mapping[str, Recipe]
    """By name of the memory."""
    seeds: Sequence[int]
    measure: Measure
    split: str
    """Part of the text that is scored: test, or valid if the corpus has no test set."""
    command: str

    @property
    def reference(self) -> str:
        """The memory that all others are compared with: none, or else the first."""
        return NO_MEMORY if NO_MEMORY in self.recipes else next(iter(self.recipes))

    @property
    def grid(self) -> Grid:
        rows = [self._row(name, recipe, color) for color, (name, recipe) in enumerate(self.recipes.items())]
        return Grid(rows=rows, measure=self.measure)

    def _row(self, name: str, recipe: Recipe, color: int) -> Row:
        return Row(
            key=name,
            name=name,
            label=name,
            seeds=self.seeds,
            settings=training(recipe, {"test": {"split": self.split, **_settings(recipe.test)}}),
            labels={"memory": memory_in_words(recipe.model)},
            color=color,
        )

    @property
    def claims(self) -> list[Claim]:
        others = [name for name in self.recipes if name != self.reference]
        return [Better(f"{name} is better than {self.reference}", "", name, self.reference) for name in others]

    @property
    def experiment(self) -> Experiment:
        grid = self.grid
        return Experiment(
            name=self.name,
            title=f"Memories on {self.text}",
            paper="",
            covers=(),
            claim="",
            cells=lambda budget: grid.cells,
            verdicts=lambda results: judge(grid, results, self.claims),
            figures=lambda results: [*learning_curves(grid, results), *score_bars(grid, results)],
            tables=self.tables,
        )

    def tables(self, results: Results) -> list[Table]:
        measure = self.measure
        return grid_table(
            self.grid,
            results,
            label("memory"),
            cell_label("kept", "memory"),
            Column(f"{self.split} {measure.unit} (95% interval)", _interval),
            num_seeds(),
            Column("parameters", _parameters),
            Column("tokens/s", _speed),
            title=f"{measure.unit} by memory",
            caption=f"Means over seeds on the {self.split} set; intervals by Student's t. Lower is better. "
            "In verdicts, ± is the standard deviation over seeds, and the interval of a gain is in parentheses.",
        )

    def numbers(self, results: Results) -> list[dict[str, Any]]:
        """What the table has, as numbers: for each memory that has a run."""
        grid = self.grid
        return [_numbers(grid, results, row) for row in grid.rows if grid.found(results, row)]

    def page(self, found: Found) -> ExperimentPage:
        steps = next(iter(self.recipes.values())).train.steps
        lead = (
            f"{len(self.recipes)} memories on {self.text}, each trained with {plural(len(self.seeds), 'seed')} for "
            f"{plural(steps, 'step')}. "
            f"A memory is better than {self.reference} if it lowers the loss by 0.3% or more, beyond chance."
        )
        return replace(build_page(self.experiment, found), lead=lead, command=self.command, budget="", data="")


def _settings(config: EvalConfig) -> dict[str, Any]:
    """The test settings of a recipe that are not defaults."""
    stored, default = to_json(config), to_json(EvalConfig())
    return {name: value for name, value in stored.items() if value != default[name] and name != "type"}


def _numbers(grid: Grid, results: Results, row: Row) -> dict[str, Any]:
    by_seed = {seed: grid.measure.shown(value) for seed, value in grid.by_seed(results, row.key).items()}
    scores = list(by_seed.values())
    return {
        "memory": row.key,
        "unit": grid.measure.unit,
        "by_seed": by_seed,
        "mean": fmean(scores) if scores else None,
        "half_width": _half_width(scores),
        "parameters": _num_parameters(grid, results, row),
        "tokens_per_second": _mean_speed(grid, results, row),
    }


def _half_width(values: Sequence[float]) -> float | None:
    """Of the 95% t-interval of the mean; None without a spread."""
    return None if len(values) < 2 else t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def _interval(grid: Grid, results: Results, row: Row) -> str:
    """Mean and 95% t-interval over seeds, in the unit of the measure."""
    values = [grid.measure.shown(value) for value in grid.by_seed(results, row.key).values()]
    if not values:
        return ""
    text, half = f"{fmean(values):.{grid.measure.digits}f}", _half_width(values)
    return text if half is None else f"{text} ± {half:.{grid.measure.digits}f}"


def _parameters(grid: Grid, results: Results, row: Row) -> str:
    size = _num_parameters(grid, results, row)
    return "-" if size is None else f"{size:,}"


def _num_parameters(grid: Grid, results: Results, row: Row) -> int | None:
    sizes = [each.values.get("parameters") for _, each in grid.found(results, row)]
    return next((size for size in sizes if isinstance(size, int)), None)


def _speed(grid: Grid, results: Results, row: Row) -> str:
    mean = _mean_speed(grid, results, row)
    return "-" if mean is None else f"{mean:,.0f}"


def _mean_speed(grid: Grid, results: Results, row: Row) -> float | None:
    found = [_tokens_per_second(each) for _, each in grid.found(results, row)]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None


def _tokens_per_second(result: CellResult) -> float | None:
    value = result.values.get("tokens_per_second")
    return float(value) if isinstance(value, (int, float)) else None
