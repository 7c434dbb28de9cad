"""A corpus of Tables 1, 2 and 4: models that are trained, models that are quoted, and claims about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mnemo.config import to_json
from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.figures import learning_curves, score_bars
from mnemo.papers.grid import Grid, Measure, Row, training
from mnemo.papers.judge import Better, Claim, Reaches, judge, undecided
from mnemo.papers.tables import grid_table, label, num_parameters, published, score
from mnemo.papers.xl.recipes import published_recipe, seeds
from mnemo.recipes.recipe import Recipe

PAPER = "Transformer-XL"
CLOSE = 0.01
"""Share by which a score may exceed the published one and still reach it."""
NOT_RUN = "quoted, not run"


class Entry(NamedTuple):
    """A model of a table, and its recipe at every budget that trains it."""

    name: str
    label: str
    preset: str | None = None
    """Of `paper`."""
    small: Callable[[], Recipe] | None = None
    self_test: Callable[[], Recipe] | None = None
    paper: float | None = None
    """Published value, at the published size."""
    millions: float | None = None
    """Published number of parameters."""

    def recipe(self, budget: Budget) -> Recipe | None:
        if budget == "paper":
            return None if self.preset is None else published_recipe(self.preset)
        make = self.small if budget == "small" else self.self_test
        return None if make is None else make()

    @property
    def published(self) -> str:
        return "-" if self.paper is None else str(self.paper)


class Quoted(NamedTuple):
    """A row of the paper's table that is not trained here."""

    label: str
    size: str
    value: str


def same_grid(grid: Grid, budget: Budget) -> Grid:
    return grid


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    name: str
    title: str
    table: str
    claim: str
    measure: Measure
    corpus: str
    stand_in: str
    """Text that is read at `small`."""
    entries: Sequence[Entry]
    quoted: Sequence[Quoted] = ()
    comparisons: Sequence[Better]
    against_quoted: Sequence[Reaches] = ()
    """Claims about quoted values, which only `paper` can decide."""
    notes: tuple[str, ...]
    small_seeds: int = 1
    arrange: Callable[[Grid, Budget], Grid] = same_grid
    """Adds cells to the grid that its rows need."""

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.name,
            title=self.title,
            paper=PAPER,
            covers=(self.table,),
            claim=self.claim,
            cells=lambda budget: self.grid(budget).cells,
            verdicts=lambda results: judge(self.grid(results.budget), results, self.claims(results.budget)),
            figures=self.figures,
            tables=self.tables,
            notes=self.notes,
        )

    def grid(self, budget: Budget) -> Grid:
        trained = [(entry, entry.recipe(budget)) for entry in self.entries]
        rows = [self.row(entry, recipe, budget) for entry, recipe in trained if recipe is not None]
        return self.arrange(Grid(rows=rows, measure=self.measure), budget)

    def row(self, entry: Entry, recipe: Recipe, budget: Budget) -> Row:
        return Row(
            key=entry.name,
            name=entry.name,
            label=entry.label,
            seeds=seeds(budget, self.small_seeds),
            settings=training(recipe, {"test": {"split": "test"} | to_json(recipe.test)}),
            labels={"model": entry.name},
            paper=(entry.published,),
        )

    def claims(self, budget: Budget) -> list[Claim]:
        reached = [self.reaches(entry.label, entry.name, entry.paper) for entry in self.entries if entry.paper]
        if budget == "paper":
            return [*self.comparisons, *self.against_quoted, *reached]
        why = f"this budget trains on {self.stand_in}"
        return [*self.comparisons, *(undecided(each.text, each.paper, why) for each in reached)]

    def reaches(self, label: str, row: str, value: float) -> Reaches:
        text = f"{label} reaches the published {self.measure.unit} of {self.corpus}, to {CLOSE:.0%}."
        return Reaches(text, str(value), row, value, CLOSE)

    def tables(self, results: Results) -> list[Table]:
        grid, unit = self.grid(results.budget), self.measure.unit
        not_trained = [
            Quoted(entry.label, "-", entry.published)
            for entry in self.entries
            if not grid.row(entry.name) and entry.paper
        ]
        quoted = [(each.label, each.size, NOT_RUN, each.value) for each in (*self.quoted, *not_trained)]
        text = self.corpus if results.budget == "paper" else self.stand_in
        caption = f"Test {unit}. The paper's values are of {self.corpus}; ours are of {text}."
        columns = (label("model"), num_parameters(), score("ours"), published("paper"))
        return grid_table(grid, results, *columns, title=self.table, caption=caption, quoted=quoted)

    def figures(self, results: Results) -> list[Figure]:
        grid = self.grid(results.budget)
        return [*score_bars(grid, results), *learning_curves(grid, results)]
