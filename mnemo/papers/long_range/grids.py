"""The models of each budget, and rows that train them with long memories in some of their layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mnemo.memory import XL, Plan
from mnemo.memory.plan import Arrangement
from mnemo.model import InitConfig, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.papers.experiment import Budget
from mnemo.papers.grid import Row, training
from mnemo.papers.judge import Gain
from mnemo.recipes import long_range as published
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.report.style import NUM_COLORS

Share = Literal["all", "half", "sixth", "one", "none"]
PARTS: dict[Share, int | None] = {"all": 1, "half": 2, "sixth": 6}
"""One layer of this many is long range."""
PLACE_COLORS = {"all": 0, "interleaved": 1, "last": 2, "first": 3, "middle": 4, "none": 7}
"""The same in all figures of a page."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many layers are long range, and where, for any number of layers."""

    share: Share
    arrangement: Arrangement = "interleaved"

    def count(self, num_layers: int) -> int:
        if self.share in ("one", "none"):
            return int(self.share == "one")
        return max(1, num_layers // (PARTS[self.share] or 1))

    @property
    def is_arranged(self) -> bool:
        """Whether some layers, but not all, are long range."""
        return self.share not in ("all", "none")

    @property
    def place(self) -> str:
        return self.arrangement if self.is_arranged else self.share

    @property
    def key(self) -> str:
        return f"{self.share}, {self.arrangement}" if self.is_arranged else self.share

    @property
    def color(self) -> int:
        """The place decides the colour, the share the dashes: a sixth is dashed, a single layer dotted."""
        rounds = {"sixth": 2, "one": 1}.get(self.share, 0)
        return PLACE_COLORS[self.place] + rounds * NUM_COLORS

    def label(self, num_layers: int) -> str:
        count = self.count(num_layers)
        if not self.is_arranged:
            return f"all {count}" if count else "none"
        return f"{count} {self.arrangement}"

    def labels(self, num_layers: int) -> dict[str, Any]:
        names = {"plan": self.label(num_layers), "share": self.share, "arrangement": self.place}
        return names | {"long": self.count(num_layers), "layers": num_layers}


ALL, NONE = Layout(share="all"), Layout(share="none")
HALF, HALF_FIRST, HALF_LAST = (Layout(share="half", arrangement=where) for where in ("interleaved", "first", "last"))
SIXTH, SIXTH_FIRST, SIXTH_MIDDLE, SIXTH_LAST = (
    Layout(share="sixth", arrangement=where) for where in ("interleaved", "first", "middle", "last")
)
ONE_FIRST, ONE_LAST = (Layout(share="one", arrangement=where) for where in ("first", "last"))
GAIN = Gain(ALL.key, NONE.key)
"""Half of it may be lost by plans that are called as good as long memories in all layers."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Recipe, memory lengths, seeds and scoring that all rows of a grid share."""

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

    def planned(self, layout: Layout, short: int | None = None) -> Recipe:
        return replace(self.recipe, model=replace(self.recipe.model, memory=self.plan(layout, short)))

    def row(self, layout: Layout, paper: str = "-") -> Row:
        name = layout.label(self.num_layers)
        return Row(
            key=layout.key,
            name=name.replace(" ", "-"),
            label=name,
            seeds=self.seeds,
            settings=training(self.planned(layout), {"test": self.score}),
            labels=layout.labels(self.num_layers) | {"short": self.short},
            paper=(paper,),
            color=layout.color,
        )

    def short_row(self, short: int, paper: str = "-") -> Row:
        """A sixth of the layers long range, with another length of the short memories."""
        row = self.row(SIXTH, paper)
        return replace(
            row,
            key=str(short),
            name=f"{row.name}-short{short}",
            label=str(short),
            settings=training(self.planned(SIXTH, short), {"test": self.score}),
            labels={**row.labels, "short": short},
        )


def characters(budget: Budget) -> Scale:
    """Byte or character models: enwik8 in the paper, novels at `small`."""
    if budget == "self-test":
        return toy()
    if budget == "small":
        score = {"split": "test", "batch": 64, "limit": 1_000_000}
        return Scale(recipe=novels(), long=1024, short=64, seeds=(1, 2), score=score)
    return _paper(published.long_enwik8())


def words(budget: Budget) -> Scale:
    """Word models: WikiText-103 in the paper, WikiText-2 at `small`."""
    if budget == "self-test":
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
    """Two steps on a CPU."""
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
    """Layers are compiled one by one: compiling the whole graph would take longer than the run."""
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
    """10M parameters; a run reads less than one epoch.

    A byte attends to 128 bytes on average if no layer is long range, and to 1,088 if all are.
    """
    return Recipe(
        model=NARROW,
        data=DataConfig(corpus="novels", drop_last=True),
        train=_short_training(steps, batch=128, segment=128, evaluations=4),
        evaluation=EvalConfig(batch=32, limit=200_000),
    )


def wikitext2() -> Recipe:
    """About three epochs of two million words, which need dropout."""
    dropout = DropoutConfig(input=0.2, projection=0.2, inner=0.1, feed_forward=0.2, output=0.2)
    return Recipe(
        model=replace(NARROW, vocab_size=33_278, embedding=EmbeddingConfig(), dropout=dropout),
        data=DataConfig(corpus="wikitext-2", drop_last=True),
        train=_short_training(800, batch=128, segment=64, evaluations=4),
        evaluation=EvalConfig(batch=10),
    )
