"""A corpus of the paper's tables: models that are trained, those that are quoted, and who must beat whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mnemo.config import to_json
from mnemo.papers.claims import Claim
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.jobs import training_cell
from mnemo.papers.xl.comparing import Measured, judged, lower, shown, spread, undecided
from mnemo.papers.xl.recipes import seeded, seeds
from mnemo.recipes.recipe import Recipe
from mnemo.report.plots import bar_figure, line_figure, lines_over_seeds

CLOSE = 0.01
"""How far, of the published value, a run may be from it and still count as reaching it."""
KEYS = {"bpc": "scores.test.bits_per_token", "ppl": "scores.test.perplexity"}


class Entry(NamedTuple):
    """A model of a table that is trained here."""

    name: str
    label: str
    recipes: Callable[[Budget], Recipe | None]
    """None where a budget leaves it out"""
    paper: float | None = None
    """The published value, at the published size"""


class Quoted(NamedTuple):
    label: str
    size: str
    value: str


class AsQuoted(NamedTuple):
    """What takes the place of an entry that `paper` does not train: a number that others have published."""

    claim: str
    label: str
    value: float
    as_good: bool = False
    """Whether it is enough to reach it"""


class Beats(NamedTuple):
    """One entry is to be better than another."""

    claim: str
    paper: str
    better: str
    worse: str
    quoted: AsQuoted | None = None


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    name: str
    title: str
    table: str
    claim: str
    unit: Literal["bpc", "ppl"]
    corpus: str
    stand_in: str
    """What `small` reads instead, in words."""
    entries: Sequence[Entry]
    quoted: Sequence[Quoted]
    beats: Sequence[Beats]
    notes: tuple[str, ...] = ()
    small_seeds: int = 1

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.name,
            title=self.title,
            paper="Transformer-XL",
            covers=(self.table,),
            claim=self.claim,
            cells=self.cells,
            verdicts=self.verdicts,
            figures=self.figures,
            tables=self.tables,
            notes=self.notes,
        )

    def cells(self, budget: Budget) -> list[Cell]:
        return [
            _cell(entry, seeded(recipe, seed), seed)
            for entry in self.entries
            for seed in seeds(budget, self.small_seeds)
            if (recipe := entry.recipes(budget)) is not None
        ]

    def measured(self, results: Results, name: str) -> Measured:
        label = next(entry.label for entry in self.entries if entry.name == name)
        return Measured(label, results.values(KEYS[self.unit], model=name))

    def verdicts(self, results: Results) -> list[Verdict]:
        pairs = [self._beats(results, each) for each in self.beats]
        return [*pairs, *(self._reaches(results, entry) for entry in self.entries if entry.paper is not None)]

    def _beats(self, results: Results, pair: Beats) -> Verdict:
        left_out = [
            entry.label
            for entry in self.entries
            if entry.name in (pair.better, pair.worse) and entry.recipes(results.budget) is None
        ]
        better = self.measured(results, pair.better)
        if not left_out:
            return lower(results, pair.claim, pair.paper, better, self.measured(results, pair.worse))
        if results.budget == "paper" and pair.quoted is not None:
            return self._beats_quoted(results, pair.paper, better, pair.quoted)
        ours = f"not decided by this budget, which does not train: {', '.join(left_out)}"
        return Claim(pair.claim, pair.paper).open(ours)

    def _beats_quoted(self, results: Results, paper: str, better: Measured, quoted: AsQuoted) -> Verdict:
        other = Measured(f"{quoted.label}, as quoted:", [quoted.value])
        if not better.values or not quoted.as_good:
            return lower(results, quoted.claim, paper, better, other)
        holds = better.mean <= quoted.value * (1 + CLOSE)
        return judged(results, quoted.claim, paper, f"{better}; {other}", holds)

    def _reaches(self, results: Results, entry: Entry) -> Verdict:
        assert entry.paper is not None
        claim = f"{entry.label} reaches the published {self.unit} of {self.corpus}, to {CLOSE:.0%}."
        paper = shown(entry.paper)
        if results.budget != "paper":
            return Claim(claim, paper).open(f"not decided by this budget, which reads {self.stand_in}")
        found = self.measured(results, entry.name)
        if not found.values:
            return undecided(claim, paper, [entry.label])
        return judged(results, claim, paper, spread(found.values), found.mean <= entry.paper * (1 + CLOSE))

    def tables(self, results: Results) -> list[Table]:
        rows = [[each.label, each.size, "quoted, not run", each.value] for each in self.quoted]
        for entry in self.entries:
            found = self.measured(results, entry.name)
            sizes = results.values("parameters", model=entry.name)
            size = f"{sizes[0] / 1e6:.3g}M" if sizes else "-"
            rows.append([entry.label, size, spread(found.values), "-" if entry.paper is None else shown(entry.paper)])
        what = self.corpus if results.budget == "paper" else self.stand_in
        caption = f"Test {self.unit}. The paper's values are of {self.corpus}; ours are of {what}."
        return [Table(title=self.table, headers=["model", "parameters", "ours", "paper"], rows=rows, caption=caption)]

    def figures(self, results: Results) -> list[Figure]:
        found = [one for entry in self.entries if (one := self.measured(results, entry.name)).values]
        if not found:
            return []
        bars = [(one.label, one.mean) for one in found]
        bar = bar_figure("test", f"Test {self.unit}", "Shorter is better; mean over seeds.", bars, unit=self.unit)
        return [bar, *self._curves(results)]

    def _curves(self, results: Results) -> list[Figure]:
        points = [
            (entry.label, float(step), float(loss))
            for entry in self.entries
            for cell in results.select(model=entry.name)
            for step, loss in cell.values.get("curve") or []
        ]
        if not points:
            return []
        lines = lines_over_seeds(points)
        caption = "Validation loss during training; means over seeds, the band from the lowest to the highest."
        return [line_figure("learning", "Learning curves", caption, lines, x_label="step", y_label="nats per token")]


def _cell(entry: Entry, recipe: Recipe, seed: int) -> Cell:
    scores = {"test": {"split": "test"} | to_json(recipe.test)}
    return training_cell(f"{entry.name}-seed{seed}", recipe, {"model": entry.name, "seed": seed}, scores=scores)
