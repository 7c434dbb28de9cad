"""The models that LaMemo is compared with, and their sizes at each budget.

All rows of a comparison are one recipe with different memories. At `paper` it is the preset, whose docstring gives the
source of every number; at `small` the same architecture and optimizer with a smaller model and less text; at
`self-test` just enough to run every line of code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mnemo.memory import XL, AnyMemory, Compressive, Infinite, Lookahead, Plan
from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.lamemo import CLIP, remember
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig

PAPER = "LaMemo: Language Modeling with Look-Ahead Memory"
TRANSFORMER, TRANSFORMER_XL, LAMEMO = "Transformer", "Transformer-XL", "LaMemo"
COMPRESSIVE, INFINITE = "Compressive Transformer", "infinity-former"
MODELS = (TRANSFORMER, TRANSFORMER_XL, COMPRESSIVE, INFINITE, LAMEMO)
"""In the order of Table 1."""
SEED = 1111
"""The published seed; further ones follow it."""
SAMPLES = 512
"""Points at which infinity-former samples its old signal, as in all of its released code."""
RATIO = 4
"""Compression of the Compressive Transformer: the only ratio that fits the published size."""


def memory_of(model: str, length: int) -> AnyMemory:
    """The memory of a row of the comparison: `length` slots, and the same number of compressed ones if it has them."""
    return {
        TRANSFORMER: XL(length=0),
        TRANSFORMER_XL: XL(length=length),
        COMPRESSIVE: Compressive(length=length, compressed=length, ratio=RATIO),
        INFINITE: Infinite(length=length, basis=length, block=length, samples=SAMPLES, sticky=True, gate="shared"),
        LAMEMO: Lookahead(length=length),
    }[model]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and its training; segment and memory are equally long, as in the paper."""

    corpus: str
    vocab_size: int = 256
    num_layers: int
    dim: int
    num_heads: int
    length: int
    """Of segment and memory."""
    batch: int
    steps: int
    lr: float
    dropout: float = 0.0
    valid: int = 500_000
    """Symbols of the validation set that are scored in training."""
    evaluations: int = 5
    rows: int = 64
    """Batch of the evaluation."""
    precision: Literal["fp32", "bf16"] = "bf16"

    def recipe(self, memory: AnyMemory, seed: int = SEED) -> Recipe:
        every = max(1, self.steps // self.evaluations)
        return Recipe(
            model=ModelConfig(
                vocab_size=self.vocab_size,
                num_layers=self.num_layers,
                dim=self.dim,
                num_heads=self.num_heads,
                head_dim=self.dim // self.num_heads,
                inner_dim=4 * self.dim,
                memory=Plan(long=memory),
                dropout=DropoutConfig.published(self.dropout),
            ),
            data=DataConfig(corpus=self.corpus, rotate=True),
            train=TrainConfig(
                steps=self.steps,
                batch=self.batch,
                segment=self.length,
                optimizer=OptimizerConfig(lr=self.lr, clip=CLIP),
                schedule=ScheduleConfig(warmup=self.steps // 10),
                precision=self.precision,
                compile="layers" if self.precision == "bf16" else False,
                seed=seed,
                log_every=max(1, self.steps // 50),
                eval_every=every,
                checkpoint_every=self.steps,
                keep=1,
            ),
            evaluation=EvalConfig(batch=self.rows, limit=self.valid),
            test=EvalConfig(batch=self.rows),
        )


SELF_TEST = Size(
    corpus="python",
    num_layers=3,
    dim=16,
    num_heads=2,
    length=8,
    batch=2,
    steps=2,
    lr=1e-3,
    valid=64,
    evaluations=1,
    rows=2,
    precision="fp32",
)
NOVELS = Size(corpus="novels", num_layers=8, dim=384, num_heads=6, length=128, batch=64, steps=2400, lr=5e-4)
"""20M bytes, less than a third of the corpus: no byte is read twice, so no dropout is needed."""
CHARACTERS = Size(corpus="novels", num_layers=6, dim=256, num_heads=4, length=512, batch=16, steps=1500, lr=1e-3)
"""Segment and memory as long as in the paper's character models."""
HALF_CHARACTERS = replace(CHARACTERS, length=256, batch=32)
WORDS = Size(
    corpus="wikitext-2",
    vocab_size=33_278,
    num_layers=8,
    dim=256,
    num_heads=4,
    length=150,
    batch=16,
    steps=2000,
    lr=7e-4,
    dropout=0.1,
    valid=100_000,
    rows=16,
)
"""Segment and memory as long as in the paper's word models; two epochs."""
ABLATION = Size(corpus="novels", num_layers=6, dim=256, num_heads=4, length=128, batch=32, steps=1500, lr=1e-3)


ANALYSED = Size(corpus="novels", num_layers=8, dim=256, num_heads=4, length=128, batch=32, steps=2000, lr=7e-4)
"""For measurements on trained models: attention, coefficients, samples, longer memories."""


def published(name: str, memory: AnyMemory, seed: int = SEED, *, corpus: str | None = None) -> Recipe:
    """A preset of the paper with a memory, perhaps on another corpus; in half precision, as the authors trained."""
    recipe = remember(preset(name), memory)
    data = recipe.data if corpus is None else replace(recipe.data, corpus=corpus)
    return replace(recipe, data=data, train=replace(recipe.train, seed=seed, precision="bf16"))
