"""Penn Treebank in a quarter of an hour on one GPU: the authors' regularisation with constant shapes.

The authors' recipe (`ptb`) makes 232,000 updates of 700 words. On a GPU the time of such an update depends on the
number of kernels, not on their size, so two to three times the words cost little more. These presets share:

- Segments of one length, without a shorter last one (`drop_last`), so that every update is one compiled CUDA graph.
  Rows start at a random position in each epoch (`rotate`), which replaces varying lengths.
- Widths suitable for tensor cores, heads of 32, one projection for positions and tokens: under 24.0M weights.
- Learning rates proportional to the square root of the words per update, from 3e-4 at 700. A cosine reduces them to a
  third of the peak in the first 70% of the steps; the rest runs at a sixth of the peak, and its weights are averaged.

To change the time budget, set three flags together; for S steps and T = 7/10 of S:
`--train.steps S --train.schedule.steps T --train.average.start T` (and an evaluation every S/12: `--train.eval-every`).
Sizes and schedules are our choice, derived from published runs and not tuned.
"""

from __future__ import annotations

from dataclasses import replace

from mnemo.model import InitConfig, ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Relative
from mnemo.recipes.penn_treebank import DROPOUT
from mnemo.recipes.preset_table import Table
from mnemo.recipes.recipe import (
    AverageConfig,
    DataConfig,
    EvalConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    TrainConfig,
)
from mnemo.recipes.transformer_xl import everywhere

PRESETS = Table()

STRONGER = replace(DROPOUT, inner=0.25, feed_forward=0.25, output=0.55)
"""Stronger dropout, for 1.5 times the authors' epochs; their training loss still decreases at the end."""
STEPS = 120_000


def fast_model(memory: int, dropout: DropoutConfig) -> ModelConfig:
    """16 layers of 384: 23,948,560 parameters."""
    return ModelConfig(
        vocab_size=10_000,
        num_layers=16,
        dim=384,
        num_heads=12,
        head_dim=32,
        inner_dim=864,
        positions=Relative(shared_projection=True),
        memory=everywhere(memory),
        dropout=dropout,
        activation_penalty=0.2,
        temporal_penalty=0.1,
        init=InitConfig(norm_bias_std=0.02),
    )


def fast_training(steps: int, optimizer: OptimizerConfig, *, batch: int, segment: int, context: int = 0) -> TrainConfig:
    """Schedule: 70% of the steps with a cosine to a third of the rate, the rest at half of that, averaged."""
    first = steps * 7 // 10
    return TrainConfig(
        steps=steps,
        batch=batch,
        segment=segment,
        context=context,
        optimizer=optimizer,
        schedule=ScheduleConfig(warmup=min(3000, first // 10), steps=first, min_lr=optimizer.lr / 3),
        average=AverageConfig(start=first, lr=optimizer.lr / 6),
        precision="bf16",
        log_every=500,
        eval_every=max(1, steps // 12),
        checkpoint_every=max(1, steps // 12),
        keep=1,
    )


def adam(lr: float) -> OptimizerConfig:
    return OptimizerConfig(lr=lr, weight_decay=1.2e-6, embedding_lr_factor=2.0)


def with_memory(model: ModelConfig, train: TrainConfig) -> Recipe:
    """Return a recipe evaluated with long memories, so that nearly every word has the full context of training."""
    return Recipe(
        model=model,
        data=DataConfig(corpus="ptb", rotate=True, drop_last=True),
        train=train,
        evaluation=EvalConfig(batch=10, segment=64, memory=192),
        test=EvalConfig(batch=1, segment=16, memory=240),
    )


def ptb_fast_with(steps: int) -> Recipe:
    return with_memory(fast_model(128, STRONGER), fast_training(steps, adam(4.8e-4), batch=16, segment=128))


@PRESETS.add("ptb-fast")
def ptb_fast() -> Recipe:
    """Transformer-XL, Penn Treebank words, 16 layers, 23.9M parameters, real memory: about ten minutes of an H200.

    16 rows with segments of 128 words and a memory of 128: an update has three times the words of the authors'; an
    epoch has 454 updates, and there are 264 epochs. On WikiText-2, a model of this shape with memory, larger batches
    and half precision reached 63.1-63.5, as far below an AWD-LSTM as the authors' recipe is on Penn Treebank. Dropout
    is slightly stronger than theirs because there are more epochs. In testing, 16 new words with a memory of 240, which
    gives the same largest distance as training.
    """
    return ptb_fast_with(STEPS)


def ptb_fast_context_with(steps: int) -> Recipe:
    recipe = with_memory(fast_model(0, DROPOUT), fast_training(steps, adam(4.2e-4), batch=20, segment=70, context=70))
    return replace(
        recipe,
        evaluation=EvalConfig(batch=10, segment=35, context=105),
        test=EvalConfig(batch=1, segment=10, context=130),
    )


@PRESETS.add("ptb-fast-context")
def ptb_fast_context() -> Recipe:
    """Transformer-XL, Penn Treebank words, 16 layers, 23.9M parameters, context encoded again: 14 minutes.

    The preset closest to the authors' recipe: their dropout, their 70 words after 70 that are encoded again with
    gradient, their evaluation. 20 rows instead of 10 give as many epochs (181) in half the updates, with a rate higher
    by the square root of two. Segment lengths do not vary.
    """
    return ptb_fast_context_with(STEPS)


def ptb_fast_wide_with(steps: int) -> Recipe:
    """12 layers of 448: 23,795,216 parameters."""
    recipe = ptb_fast_with(steps)
    model = replace(recipe.model, num_layers=12, dim=448, num_heads=14, inner_dim=896)
    train = fast_training(steps, adam(6e-4), batch=32, segment=128)
    return replace(recipe, model=model, train=train)


@PRESETS.add("ptb-fast-wide")
def ptb_fast_wide() -> Recipe:
    """Transformer-XL, Penn Treebank words, 12 layers of 448, 23.8M parameters, real memory: about ten minutes.

    As `ptb-fast`, with three quarters of the layers and so of the kernels, and twice the rows: half as many updates
    for the same number of epochs (264), in less time. In published sweeps, layers beyond the twelfth help little. The
    rate is slightly below the square-root rule. It overfits (docs/penn-treebank.md): 62.0 on valid.
    """
    return ptb_fast_wide_with(STEPS // 2)


def ptb_fast_muon_with(steps: int) -> Recipe:
    optimizer = OptimizerConfig(
        kind="muon", lr=4e-3, adam_lr=4.8e-4, weight_decay=0.05, momentum=0.95, embedding_lr_factor=2.0
    )
    recipe = ptb_fast_with(steps)
    return replace(recipe, train=fast_training(steps, optimizer, batch=16, segment=128))


@PRESETS.add("ptb-fast-muon")
def ptb_fast_muon() -> Recipe:
    """Transformer-XL, Penn Treebank words, 16 layers, 23.9M parameters, real memory, Muon: about ten minutes.

    As `ptb-fast`, but with Muon for the weight matrices of layers. A rate of 4e-3 changes a weight about twice as much
    as Adam's 4.8e-4; a higher one would mainly add noise, because dropout already makes small batches noisy. The time
    constant of weight decay is 5,000 steps at the peak rate and 30,000 in the averaged stage; embeddings do not decay.
    Experimental: there is no published run with these settings.
    """
    return ptb_fast_muon_with(STEPS * 9 // 10)
