"""The models of each budget, and the cells that train them with long memories in some of their layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mnemo.memory import XL, Plan
from mnemo.memory.plan import Arrangement
from mnemo.model import InitConfig, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.papers.experiment import Budget, Cell
from mnemo.papers.jobs import training_cell
from mnemo.recipes import long_range as published
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig

Share = Literal["all", "half", "sixth", "one", "none"]
PARTS: dict[Share, int | None] = {"all": 1, "half": 2, "sixth": 6}
"""Of how many layers one is long range."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many layers are long range, and where: the same question at every number of layers."""

    share: Share
    arrangement: Arrangement = "interleaved"

    def count(self, num_layers: int) -> int:
        if self.share in ("one", "none"):
            return int(self.share == "one")
        return max(1, num_layers // (PARTS[self.share] or 1))

    @property
    def matters(self) -> bool:
        """Whether there is anything to arrange."""
        return self.share not in ("all", "none")

    def label(self, num_layers: int) -> str:
        count = self.count(num_layers)
        if not self.matters:
            return f"all {count}" if count else "none"
        return f"{count} {self.arrangement}"

    def labels(self, num_layers: int) -> dict[str, Any]:
        kind = self.arrangement if self.matters else self.share
        names = {"plan": self.label(num_layers), "share": self.share, "arrangement": kind}
        return names | {"long": self.count(num_layers), "layers": num_layers}


ALL, NONE = Layout(share="all"), Layout(share="none")
HALF, HALF_FIRST, HALF_LAST = (Layout(share="half", arrangement=where) for where in ("interleaved", "first", "last"))
SIXTH, SIXTH_FIRST, SIXTH_MIDDLE, SIXTH_LAST = (
    Layout(share="sixth", arrangement=where) for where in ("interleaved", "first", "middle", "last")
)
ONE_FIRST, ONE_LAST = (Layout(share="one", arrangement=where) for where in ("first", "last"))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What all trained cells of a grid have in common."""

    recipe: Recipe
    long: int
    """Memory of long-range layers."""
    short: int
    """Memory of the others."""
    seeds: tuple[int, ...]
    score: dict[str, Any]
    """How the trained model is scored: a split and fields of EvalConfig."""

    @property
    def num_layers(self) -> int:
        return self.recipe.model.num_layers

    def plan(self, layout: Layout, short: int | None = None) -> Plan:
        return Plan(
            long=XL(length=self.long),
            short=XL(length=self.short if short is None else short),
            num_long=layout.count(self.num_layers),
            arrangement=layout.arrangement,
        )

    def planned(self, layout: Layout, seed: int, short: int | None = None) -> Recipe:
        model = replace(self.recipe.model, memory=self.plan(layout, short))
        return replace(self.recipe, model=model, train=replace(self.recipe.train, seed=seed))

    def cell(self, layout: Layout, seed: int, short: int | None = None) -> Cell:
        """`short` is named only where it is what the grid is about."""
        label = layout.label(self.num_layers).replace(" ", "-")
        name = f"{label}-seed{seed}" if short is None else f"{label}-short{short}-seed{seed}"
        labels = layout.labels(self.num_layers) | {"seed": seed, "short": self.short if short is None else short}
        return training_cell(name, self.planned(layout, seed, short), labels, scores={"test": self.score})


def layout_cells(scale: Scale, layouts: Iterable[Layout]) -> list[Cell]:
    """Seed by seed, so that a grid that is stopped has all plans of its first seeds."""
    layouts = list(layouts)
    return [scale.cell(layout, seed) for seed in scale.seeds for layout in layouts]


def short_cells(scale: Scale, lengths: Sequence[int]) -> list[Cell]:
    return [scale.cell(SIXTH, seed, short) for seed in scale.seeds for short in lengths]


def characters(budget: Budget) -> Scale:
    """Byte or character models: enwik8 in the paper, novels at `small`."""
    if budget == "smoke":
        return toy()
    if budget == "small":
        score = {"split": "test", "batch": 64, "limit": 1_000_000}
        return Scale(recipe=novels(), long=1024, short=64, seeds=(1, 2), score=score)
    return _paper(published.long_enwik8())


def words(budget: Budget) -> Scale:
    """Word models: WikiText-103 in the paper, WikiText-2 at `small`."""
    if budget == "smoke":
        return toy()
    if budget == "small":
        return Scale(recipe=wikitext2(), long=512, short=32, seeds=(1, 2), score={"split": "test", "batch": 10})
    return _paper(published.long_wikitext103())


def _paper(recipe: Recipe) -> Scale:
    """The paper trains each model once; long memories are longer when it is tested."""
    score = {"split": "test", "batch": recipe.test.batch, "memory": recipe.test.memory}
    seeds = (recipe.train.seed,)
    return Scale(recipe=recipe, long=published.LONG, short=published.SHORT, seeds=seeds, score=score)


def toy() -> Scale:
    """Two steps on a CPU: everything runs, nothing is learned."""
    recipe = Recipe(
        model=ModelConfig(num_layers=12, dim=16, num_heads=2, head_dim=8, inner_dim=32),
        train=TrainConfig(
            steps=2, batch=2, segment=16, log_every=1, eval_every=2, checkpoint_every=2, keep=1, compile=False
        ),
        evaluation=EvalConfig(batch=2, limit=50),
    )
    return Scale(recipe=recipe, long=48, short=8, seeds=(1,), score={"split": "test", "batch": 2, "limit": 50})


NARROW = ModelConfig(
    num_layers=12,
    dim=256,
    num_heads=4,
    head_dim=64,
    inner_dim=1024,
    norm="pre",
    final_norm=True,
    qk_norm=True,
    activation="squared_relu",
    embedding=EmbeddingConfig(tie_weights=False),
    init=InitConfig(residual="zero"),
)
"""Transformer-XL's attention in a body that learns quickly: 12 layers, so that a sixth of them is two."""
MUON = OptimizerConfig(kind="muon", lr=0.02, adam_lr=3e-3, betas=(0.9, 0.99), momentum=0.95, clip=1.0)


def _short_training(steps: int, batch: int, segment: int, evaluations: int) -> TrainConfig:
    """Layers compiled: a whole graph would take longer to compile than these runs take."""
    return TrainConfig(
        steps=steps,
        batch=batch,
        segment=segment,
        optimizer=MUON,
        schedule=ScheduleConfig(kind="linear", warmup=steps // 20),
        precision="bf16",
        compile="layers",
        log_every=50,
        eval_every=max(1, steps // evaluations),
        checkpoint_every=steps,
        keep=1,
    )


def novels(steps: int = 900) -> Recipe:
    """10M parameters. A byte sees 128 bytes back on average where no layer is long range, and 1,088 where all are;
    the text of a run is read less than once."""
    return Recipe(
        model=NARROW,
        data=DataConfig(corpus="novels", drop_last=True),
        train=_short_training(steps, batch=128, segment=128, evaluations=4),
        evaluation=EvalConfig(batch=32, limit=200_000),
    )


def wikitext2(steps: int = 800) -> Recipe:
    """About three epochs of two million words: hence the dropout."""
    dropout = DropoutConfig(input=0.2, projection=0.2, inner=0.1, feed_forward=0.2, output=0.2)
    return Recipe(
        model=replace(NARROW, vocab_size=33_278, embedding=EmbeddingConfig(), dropout=dropout),
        data=DataConfig(corpus="wikitext-2", drop_last=True),
        train=_short_training(steps, batch=128, segment=64, evaluations=4),
        evaluation=EvalConfig(batch=10),
    )
