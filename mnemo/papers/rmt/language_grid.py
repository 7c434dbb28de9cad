"""Language models over memory size and depth of backpropagation, shared by three experiments.

`paper` are the presets of Tables 2 to 4. `small` has the shape of Table 3, bytes in segments of 128, with a smaller
model and novels instead of Wikipedia. A run that diverges or does not fit into memory has that as its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mnemo.config import to_json
from mnemo.model import ModelConfig
from mnemo.papers.experiment import Budget, CellResult, Results
from mnemo.papers.grid import BPC, PPL, Grid, Row
from mnemo.papers.rmt.recipes import remembering
from mnemo.papers.tables import Column
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.recipes.rmt import BASELINE, ENWIK8, LANGUAGE, MT, RMT, WIKITEXT, XL

NOVELS, PYTHON = "novels", "python"
CORPORA = {"self-test": (PYTHON,), "small": (NOVELS,), "paper": (WIKITEXT, ENWIK8)}
MEASURES = {WIKITEXT: PPL, ENWIK8: BPC, NOVELS: BPC, PYTHON: BPC}
SEGMENT = {PYTHON: 8, NOVELS: 128, WIKITEXT: 50, ENWIK8: 128}
"""The segments that claims are tested at: short ones, where memory counts most."""


class Variant(NamedTuple):
    """A language model: its text, the kind and size of its memory, and the segments that gradient goes back."""

    corpus: str
    segment: int
    model: str
    memory: int = 0
    bptt: int = 0

    @property
    def key(self) -> str:
        depth = f"-bptt{self.bptt}" if self.model == RMT else ""
        return f"{self.corpus}-{self.segment}-{self.model.lower()}-{self.memory}{depth}"

    @property
    def label(self) -> str:
        memory = f" {self.memory}" if self.memory else ""
        depth = f", BPTT {self.bptt}" if self.model == RMT else ""
        return f"{self.model}{memory}{depth}, segment {self.segment}"

    @property
    def preset(self) -> str:
        kind = {BASELINE: "", MT: f"-mt{self.memory}", XL: f"-xl{self.memory}", RMT: f"-m{self.memory}-bptt{self.bptt}"}
        return f"rmt-{self.corpus.replace('-', '')}-seg{self.segment}{kind[self.model]}"

    @property
    def quoted(self) -> str:
        """The paper's value; that of enwik8 for novels."""
        corpus = ENWIK8 if self.corpus == NOVELS else self.corpus
        by_depth = LANGUAGE.get((corpus, self.segment, self.model, self.memory), ())
        return dict(enumerate(by_depth)).get(self.bptt) or "not reported"

    @property
    def visible(self) -> int:
        """Tokens that reach a loss in training, through a cache or through gradient over earlier segments."""
        earlier = self.bptt * self.segment if self.model == RMT else self.memory
        return earlier + self.segment


AS_PUBLISHED = {
    Variant(*place, bptt): 3 for place, by_depth in LANGUAGE.items() for bptt, value in enumerate(by_depth) if value
}
IN_SMALL = {
    (BASELINE, 0, 0): 2,
    (RMT, 10, 1): 2,
    (XL, 40, 0): 2,
    (RMT, 10, 0): 2,
    (RMT, 5, 1): 2,
    (XL, 10, 0): 2,
    (MT, 10, 0): 2,
    (RMT, 10, 2): 1,
    (XL, 20, 0): 1,
    (XL, 100, 0): 1,
    (RMT, 5, 0): 1,
    (RMT, 20, 1): 1,
    (RMT, 5, 2): 1,
    (RMT, 1, 1): 1,
}
"""Number of seeds by model, memory and depth, the most important first."""
IN_SELF_TEST = ((BASELINE, 0, 0), (XL, 4, 0), (RMT, 2, 0), (RMT, 2, 1))
VARIANTS: Mapping[Budget, Mapping[Variant, int]] = {
    "self-test": {Variant(PYTHON, 8, *place): 1 for place in IN_SELF_TEST},
    "small": {Variant(NOVELS, 128, *place): seeds for place, seeds in IN_SMALL.items()},
    "paper": AS_PUBLISHED,
}
"""With their number of seeds."""
MODELS = {
    NOVELS: ModelConfig(num_layers=6, dim=256, num_heads=8, head_dim=32, inner_dim=1024, norm="pre", final_norm=True),
    PYTHON: ModelConfig(num_layers=1, dim=16, num_heads=2, head_dim=8, inner_dim=16, norm="pre", final_norm=True),
}
TRAINS = {
    NOVELS: TrainConfig(
        steps=1200,
        batch=64,
        optimizer=OptimizerConfig(lr=1e-3, betas=(0.9, 0.98)),
        schedule=ScheduleConfig(warmup=100),
        precision="bf16",
        compile="layers",
        log_every=50,
        eval_every=300,
        checkpoint_every=1200,
        keep=1,
    ),
    PYTHON: TrainConfig(steps=2, batch=4, log_every=1, eval_every=2, checkpoint_every=2, keep=1),
}
EVALUATIONS = {NOVELS: EvalConfig(batch=64, limit=200_000), PYTHON: EvalConfig(batch=4, limit=256)}


def recipe(variant: Variant, seed: int) -> Recipe:
    if variant.corpus not in MODELS:
        found = preset(variant.preset)
        return replace(found, train=replace(found.train, seed=seed))
    evaluation = EVALUATIONS[variant.corpus]
    return Recipe(
        model=remembering(MODELS[variant.corpus], variant.model, variant.memory, std=0.3),
        data=DataConfig(corpus=variant.corpus, drop_last=True),
        train=replace(TRAINS[variant.corpus], segment=variant.segment, seed=seed, bptt=variant.bptt),
        evaluation=evaluation,
        test=replace(evaluation, limit=None),
    )


def language_row(variant: Variant, num_seeds: int, limit: int | None) -> Row:
    def settings(seed: int) -> dict[str, Any]:
        return {"recipe": to_json(recipe(variant, seed)), "limit": limit}

    return Row(
        key=variant.key,
        name=variant.key,
        label=variant.label,
        seeds=range(1, num_seeds + 1),
        settings=settings,
        job="rmt-language",
        labels=variant._asdict(),
        paper=(variant.quoted,),
    )


def language_grid(budget: Budget, keep: Callable[[Variant], bool] = lambda variant: True) -> Grid:
    limit, variants = 256 if budget == "self-test" else None, VARIANTS[budget]
    rows = [language_row(variant, seeds, limit) for variant, seeds in variants.items() if keep(variant)]
    return Grid(rows=rows, measure=MEASURES[CORPORA[budget][0]])


def variant_of(row: Row) -> Variant:
    return Variant(**row.labels)


def shown(grid: Grid, corpus: str) -> Grid:
    """The rows of one corpus in the order of tables and figures; rows run in the order of their importance."""
    order = {model: number for number, model in enumerate((BASELINE, MT, XL, RMT))}

    def place(variant: Variant) -> tuple[int, int, int, int]:
        return -variant.segment, order[variant.model], variant.memory, variant.bptt

    rows = [row for row in grid.rows if row.labels["corpus"] == corpus]
    return Grid(rows=sorted(rows, key=lambda row: place(variant_of(row))), measure=MEASURES[corpus])


def bptt_depth() -> Column:
    return Column("BPTT", lambda grid, results, row: row.labels["bptt"] if row.labels["model"] == RMT else None)


def outcome_of(result: CellResult) -> str | None:
    """`finished`, `diverged` or `out of memory`; None if the run has no result."""
    found = result.values.get("outcome")
    return found if isinstance(found, str) else None


def endings() -> Column:
    """How the runs of a row ended."""

    def entry(grid: Grid, results: Results, row: Row) -> str:
        counted = Counter(_ending(each) for _, each in grid.found(results, row))
        return ", ".join(f"{count} {name}" for name, count in counted.items())

    return Column("how runs ended", entry)


def _ending(result: CellResult) -> str:
    outcome, step = outcome_of(result) or "no result", result.values.get("failed_at")
    return f"{outcome} at step {step:,}" if isinstance(step, int) else outcome
