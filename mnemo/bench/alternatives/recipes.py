"""What each row trains: `speedrun-enwik8`, with another memory and other segments."""

from __future__ import annotations

from dataclasses import replace

from mnemo.bench.alternatives.flash import Flash
from mnemo.bench.alternatives.gated_delta import GatedDelta
from mnemo.bench.alternatives.rows import PRESET, SYMBOLS, Reading, Row
from mnemo.memory import XL, Plan, mechanism
from mnemo.model import ModelConfig
from mnemo.model.positions import NoPositions
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe

SCALE = 32
"""Segments and updates of a miniature are shorter by this factor."""
TINY_SYMBOLS = 2_000
"""Symbols that a miniature scores."""
DELTAS = {
    "gated-deltanet": GatedDelta(),
    "kimi-delta": GatedDelta(decay="channel", num_heads=4, value_ratio=1, inner_dim=1184),
}
"""Recurrent layers of the rows, each with as many weights as a layer of the memory model, to 1%."""


def recipe_of(row: Row, device: str, *, miniature: bool = False) -> Recipe:
    """The recipe of a row; its number of steps is set when its speed is known."""
    recipe = preset(PRESET)
    train = replace(recipe.train, segment=row.segment, batch=SYMBOLS // row.segment, device=device)
    if row.kind == "delta":
        train = replace(train, compile=False)  # the library's kernels are fused already, and cannot be traced
    recipe = replace(recipe, model=_model(row, recipe.model), train=train)
    return _miniature(recipe) if miniature else recipe


def _model(row: Row, model: ModelConfig) -> ModelConfig:
    if row.kind == "plain":
        return replace(model, memory=_plan(Flash()))
    if row.kind == "delta":
        return replace(model, memory=_plan(DELTAS[row.name]), positions=NoPositions())
    return model


def _plan(memory: Flash | GatedDelta) -> Plan:
    return Plan(long=memory)  # type: ignore[arg-type]  # `register` adds it to the kinds of a plan


def register() -> None:
    """Let the files of runs name the memories of the rows."""
    mechanism(Flash)
    mechanism(GatedDelta)


def for_training(recipe: Recipe, steps: int, *, lines: int, evaluations: int = 1) -> Recipe:
    """The recipe with a number of steps, over which the learning rate falls, and about as many lines of metrics."""
    warmup = min(recipe.train.schedule.warmup, max(1, steps // 10))
    train = replace(
        recipe.train,
        steps=steps,
        schedule=replace(recipe.train.schedule, warmup=warmup),
        log_every=max(1, steps // lines),
        eval_every=-(-steps // evaluations),
        checkpoint_every=steps,
    )
    return replace(recipe, train=train)


def reading_of(reading: Reading, miniature: bool) -> Reading:
    """The reading in the size of the row's recipe."""
    scale = SCALE if miniature else 1
    return replace(reading, segment=reading.segment // scale, context=reading.context // scale)


def _miniature(recipe: Recipe) -> Recipe:
    """A tiny model on short segments, which tries a row in seconds."""
    model, memory = recipe.model, recipe.model.memory
    if isinstance(memory.long, GatedDelta):
        memory = _plan(replace(memory.long, num_heads=2, head_dim=16, inner_dim=32))
    elif memory.num_long is not None:
        memory = Plan(long=XL(length=32), short=XL(length=4), num_long=1)
    model = replace(model, num_layers=2, dim=32, num_heads=2, head_dim=16, inner_dim=64, memory=memory)
    precision = "fp32" if recipe.train.device == "cpu" else recipe.train.precision
    train = replace(recipe.train, segment=recipe.train.segment // SCALE, precision=precision)
    evaluation = replace(recipe.evaluation, batch=4, limit=TINY_SYMBOLS)
    return replace(recipe, model=model, train=train, evaluation=evaluation)
