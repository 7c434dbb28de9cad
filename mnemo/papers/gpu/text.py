"""Recipes, rows and pages that the experiments on enwik8 share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mnemo.data.known_corpora import PYTHON
from mnemo.memory import AnyMemory, Plan
from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Sample, Table, nothing
from mnemo.papers.figures import learning_curves, score_bars
from mnemo.papers.grid import BPC, Grid, Measure, Row, training
from mnemo.papers.judge import Claim, judge
from mnemo.papers.tables import Column, grid_table, label, num_parameters, num_seeds, published, score
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, TrainConfig
from mnemo.recipes.transformer_xl import ENWIK8_SYMBOLS

BUDGETS: tuple[Budget, ...] = ("self-test", "gpu")
SEEDS = (1, 2, 3)
TEST_ROWS = 32
SECONDS = Measure(unit="s", digits=0, key="training_seconds", scale="s")
"""Of training, on a GPU that other cells may have shared."""


def enwik8_recipe(
    budget: Budget, memory: AnyMemory | Plan, *, segment: int, batch: int, steps: int, dim: int = 512
) -> Recipe:
    """12 layers as in the papers' smaller models, their dropout, Adam with a warm-up and a cosine to 0."""
    if budget == "self-test":
        return _two_steps(memory)
    return Recipe(
        model=ModelConfig(
            vocab_size=ENWIK8_SYMBOLS,
            num_layers=12,
            dim=dim,
            num_heads=dim // 64,
            head_dim=64,
            inner_dim=4 * dim,
            memory=_plan(memory),
            dropout=DropoutConfig.published(0.1),
        ),
        data=DataConfig(corpus="enwik8"),
        train=with_steps(
            TrainConfig(
                batch=batch,
                segment=segment,
                optimizer=OptimizerConfig(lr=5e-4),
                precision="bf16",
                compile="layers",
                log_every=100,
                keep=1,
            ),
            steps,
        ),
        evaluation=EvalConfig(batch=TEST_ROWS, limit=500_000),
    )


def with_steps(train: TrainConfig, steps: int) -> TrainConfig:
    """The same training with this number of steps: a tenth of them is the warm-up."""
    schedule = replace(train.schedule, warmup=steps // 10)
    return replace(train, steps=steps, schedule=schedule, eval_every=max(1, steps // 5), checkpoint_every=steps)


def _two_steps(memory: AnyMemory | Plan) -> Recipe:
    return Recipe(
        model=ModelConfig(num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=32, memory=_plan(memory)),
        data=DataConfig(corpus=PYTHON),
        train=TrainConfig(
            steps=2, batch=2, segment=8, log_every=1, eval_every=2, checkpoint_every=2, keep=1, compile=False
        ),
        evaluation=EvalConfig(batch=2, limit=64),
    )


def _plan(memory: AnyMemory | Plan) -> Plan:
    return memory if isinstance(memory, Plan) else Plan(long=memory)


def slots(budget: Budget, length: int) -> int:
    """A memory length at budget gpu; the self-test's is 8."""
    return min(length, 8) if budget == "self-test" else length


def test_score(budget: Budget, **options: Any) -> dict[str, Any]:
    """How a trained model is scored on the test set."""
    limits: dict[str, Any] = {"batch": 2, "limit": 64} if budget == "self-test" else {"batch": TEST_ROWS}
    return {"split": "test", **limits, **options}


def text_row(
    budget: Budget,
    key: str,
    words: str,
    recipe: Recipe,
    color: int,
    *,
    paper: str = "-",
    scores: Mapping[str, Mapping[str, Any]] | None = None,
) -> Row:
    """A model that is trained once for each seed and scored with the memory of its training, and by `scores`."""
    return Row(
        key=key,
        name=key.replace(",", "").replace(" ", "-"),
        label=words,
        seeds=SEEDS[:1] if budget == "self-test" else SEEDS,
        settings=training(recipe, {"test": test_score(budget), **(scores or {})}),
        labels={"model": words},
        paper=(paper,),
        color=color,
    )


def at(name: str, unit: str) -> Measure:
    """The test loss of a further score."""
    return replace(BPC, key=f"scores.{name}.loss", unit=unit)


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One paper's main claims on enwik8, and the rows that decide them."""

    name: str
    title: str
    paper: str
    covers: tuple[str, ...]
    claim: str
    rows: Callable[[Budget], list[Row]]
    claims: Callable[[Budget], Sequence[Claim]]
    notes: tuple[str, ...]
    columns: Callable[[Budget], Sequence[Column]] = lambda budget: ()
    """Of the table, besides the usual ones."""
    figures: Callable[[Grid, Results], list[Figure]] = lambda grid, results: []
    """Besides bars and learning curves."""
    first: Callable[[Budget], Sequence[Cell]] = lambda budget: ()
    """Cells whose measurements the training of some rows needs."""
    last: Callable[[Budget], Sequence[Cell]] = lambda budget: ()
    """Cells that read trained models."""
    tables: Callable[[Results], list[Table]] = nothing
    """Besides that of the scores."""
    samples: Callable[[Results], list[Sample]] = nothing

    def grid(self, budget: Budget) -> Grid:
        return Grid(rows=self.rows(budget), measure=BPC, first=self.first(budget), last=self.last(budget))

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.name,
            title=self.title,
            paper=self.paper,
            covers=self.covers,
            claim=self.claim,
            cells=lambda budget: self.grid(budget).cells,
            verdicts=lambda results: judge(self.grid(results.budget), results, self.claims(results.budget)),
            figures=self._figures,
            tables=lambda results: [*self._table(results), *self.tables(results)],
            samples=self.samples,
            budgets=BUDGETS,
            notes=(*self.notes, *NOTES),
        )

    def _figures(self, results: Results) -> list[Figure]:
        grid = self.grid(results.budget)
        return [*score_bars(grid, results), *self.figures(grid, results), *learning_curves(grid, results)]

    def _table(self, results: Results) -> list[Table]:
        return grid_table(
            self.grid(results.budget),
            results,
            label("model"),
            score("test bpc"),
            *self.columns(results.budget),
            num_parameters(),
            score("seconds", SECONDS),
            num_seeds(),
            published("paper's bpc"),
            title="enwik8, test set",
            caption="Mean and standard deviation over seeds. The paper's models are larger or train longer."
            + _about_seconds(results),
        )


def _about_seconds(results: Results) -> str:
    """A warning, unless every cell had the GPU for itself; older results do not say it."""
    if all(each.at_once == 1 for each in results.cells):
        return ""
    return " Seconds of different rows are not comparable: other cells may have shared the GPU."


ADAM = "Adam with a warm-up over a tenth of the steps and a cosine to 0; the papers train 100,000 to 400,000 steps."
"""Of models that are trained with `enwik8_recipe`."""
NOTES = (
    "enwik8 whole, the published splits and symbols; test set with the memory of training and 32 rows unless said.",
    "Seconds are those of training; the table says if they are not comparable.",
)
