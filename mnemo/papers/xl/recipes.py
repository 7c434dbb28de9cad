"""Recipes of all budgets: the published ones, smaller models on novels and WikiText-2, and toys for `self-test`."""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import AnyMemory, Plan
from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Learned, NoPositions
from mnemo.papers.experiment import Budget
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.recipes.transformer_xl import everywhere

FIRST_SEED = 1


def self_test() -> Recipe:
    """Two steps of a model of a few thousand weights, on a corpus that every machine has."""
    model = ModelConfig(num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=32, memory=everywhere(8))
    train = TrainConfig(
        steps=2,
        batch=2,
        segment=8,
        eval_every=2,
        checkpoint_every=2,
        log_every=1,
        keep=1,
        compile=False,
        cuda_graph=False,
        seed=FIRST_SEED,
    )
    evaluation = EvalConfig(batch=2, limit=200)
    return Recipe(model=model, train=train, evaluation=evaluation, test=evaluation)


def small_training(*, steps: int, batch: int, segment: int, lr: float) -> TrainConfig:
    """Layers are compiled one by one: compiling the whole graph would take longer than the run."""
    return TrainConfig(
        steps=steps,
        batch=batch,
        segment=segment,
        optimizer=OptimizerConfig(lr=lr),
        schedule=ScheduleConfig(warmup=150, min_lr=lr / 20),
        precision="bf16",
        compile="layers",
        log_every=100,
        eval_every=max(1, steps // 4),
        checkpoint_every=steps,
        keep=1,
        seed=FIRST_SEED,
    )


def small_bytes(*, num_layers: int = 6, segment: int = 128, steps: int = 2500) -> Recipe:
    """Bytes of novels, 5M parameters with 6 layers: 15M bytes, a quarter of the text, are read once."""
    model = ModelConfig(
        num_layers=num_layers, dim=256, num_heads=4, head_dim=64, inner_dim=1024, memory=everywhere(segment)
    )
    return Recipe(
        model=model,
        data=DataConfig(corpus="novels", drop_last=True),
        train=small_training(steps=steps, batch=6144 // segment, segment=segment, lr=1e-3),
        evaluation=EvalConfig(batch=20, limit=200_000),
        test=EvalConfig(batch=20, limit=1_000_000),
    )


def small_words(*, segment: int = 64, steps: int = 3000) -> Recipe:
    """Words of WikiText-2, 9M parameters: the text is read three times, so dropout is needed."""
    model = ModelConfig(
        vocab_size=33_278,
        num_layers=6,
        dim=192,
        num_heads=3,
        head_dim=64,
        inner_dim=768,
        memory=everywhere(segment),
        dropout=DropoutConfig.published(0.2),
    )
    return Recipe(
        model=model,
        data=DataConfig(corpus="wikitext-2", drop_last=True),
        train=small_training(steps=steps, batch=2048 // segment, segment=segment, lr=1e-3),
        evaluation=EvalConfig(batch=10),
        test=EvalConfig(batch=10),
    )


RECURRENT_LAYERS = 2
"""More layers without residual connections stay on their first plateau for longer than the runs last."""
RECURRENT_LR = 2
"""Factor on the learning rate of the transformers."""


def recurrent(recipe: Recipe, memory: AnyMemory) -> Recipe:
    """The same corpus and training, with recurrent layers instead: no positions, and dropout between layers."""
    rate = recipe.model.dropout.feed_forward
    model = replace(
        recipe.model,
        num_layers=RECURRENT_LAYERS,
        memory=Plan(long=memory),
        positions=NoPositions(),
        dropout=DropoutConfig(input=rate, projection=rate, output=rate, locked=rate > 0),
    )
    optimizer = replace(recipe.train.optimizer, lr=RECURRENT_LR * recipe.train.optimizer.lr)
    return replace(recipe, model=model, train=replace(recipe.train, optimizer=optimizer))


NEW_TOKENS = 16
"""Predicted at a time by a model without memory, which reads its whole context again for them."""


def scored_in_steps(recipe: Recipe) -> Recipe:
    """Score a few new tokens at a time with the rest of the segment as context: nearly a sliding window."""
    new = min(NEW_TOKENS, recipe.train.segment // 2)
    return replace(recipe, test=replace(recipe.test, segment=new, context=recipe.train.segment - new))


def vanilla(recipe: Recipe) -> Recipe:
    """No memory, and learned absolute positions at every layer (Al-Rfou et al., 2018)."""
    model = replace(recipe.model, memory=everywhere(0), positions=Learned(length=recipe.train.segment))
    return scored_in_steps(replace(recipe, model=model))


def on_gpu(recipe: Recipe) -> Recipe:
    """A published recipe in bf16, with weights in 32 bits."""
    return replace(recipe, train=replace(recipe.train, precision="bf16"))


def published_recipe(name: str) -> Recipe:
    recipe = on_gpu(preset(name))
    return scored_in_steps(recipe) if name.endswith("-vanilla") else recipe


def seeded(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, train=replace(recipe.train, seed=seed))


def seeds(budget: Budget, small: int = 2) -> tuple[int, ...]:
    """One seed at `paper`, where a run takes days."""
    return tuple(range(FIRST_SEED, FIRST_SEED + (small if budget == "small" else 1)))
