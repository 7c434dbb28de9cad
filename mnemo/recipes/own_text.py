"""A recipe for a text of any size, chosen by the number of its tokens and by the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.recipes.transformer_xl import everywhere

SEGMENTS_A_ROW = 8
"""Segments that every row of a batch has at least, as long as the text allows more than one row."""
EVALUATIONS = 10
"""Number of evaluations in a run."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model, and the training that suits it."""

    layers: int
    dim: int
    segment: int
    """Tokens of a segment, and slots of the memory."""
    batch: int
    """Rows of a batch, if the text is long enough for them."""
    steps: int
    """Largest number of steps."""
    epochs: int
    """Largest number of passes through the text: more make the model repeat it."""
    lr: float


SMALL = Size(layers=4, dim=128, segment=64, batch=16, steps=1500, epochs=40, lr=2e-3)
"""0.9M parameters: a few minutes on two CPU cores."""
MEDIUM = Size(layers=6, dim=256, segment=256, batch=32, steps=5000, epochs=60, lr=1e-3)
"""5M parameters, for a short text on a GPU."""
LARGE = Size(layers=8, dim=512, segment=256, batch=64, steps=10_000, epochs=60, lr=5e-4)
"""27M parameters, for a long text on a GPU."""
LONG_TEXT = 2_000_000
"""Tokens of a text that is long enough for the large model."""
REGULARISED = 2
"""Passes through the text from which on dropout helps."""


def own_text_recipe(
    corpus: str, num_train: int, num_valid: int, *, gpu: bool, precision: Literal["fp32", "bf16"] = "fp32"
) -> Recipe:
    """Transformer-XL for a text with these numbers of tokens: minutes on a CPU, a larger model on a GPU."""
    size = SMALL if not gpu else MEDIUM if num_train < LONG_TEXT else LARGE
    segment = size.segment if num_train >= 2 * SEGMENTS_A_ROW * size.segment else SMALL.segment
    batch = max(1, min(size.batch, num_train // (SEGMENTS_A_ROW * segment)))
    an_epoch = num_train / (batch * segment)
    steps = max(EVALUATIONS, min(size.steps, round(size.epochs * an_epoch)))
    every = max(1, steps // EVALUATIONS)
    rows = max(1, min(10, num_valid // (2 * segment)))
    dropout = DropoutConfig.published(0.1) if steps > REGULARISED * an_epoch else DropoutConfig()
    return Recipe(
        model=ModelConfig(
            num_layers=size.layers,
            dim=size.dim,
            num_heads=size.dim // 32,
            head_dim=32,
            inner_dim=4 * size.dim,
            memory=everywhere(segment),
            dropout=dropout,
        ),
        data=DataConfig(corpus=corpus),
        train=TrainConfig(
            steps=steps,
            batch=batch,
            segment=segment,
            optimizer=OptimizerConfig(lr=size.lr),
            schedule=ScheduleConfig(warmup=max(1, steps // 20)),
            precision=precision,
            eval_every=every,
            checkpoint_every=every,
        ),
        evaluation=EvalConfig(batch=rows, limit=20_000),
        test=EvalConfig(batch=rows),
    )
