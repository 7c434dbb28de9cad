"""Small models for a laptop. Sizes and schedules are our choice."""

from __future__ import annotations

import functools
from dataclasses import replace

from mnemo.model import ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Rotary
from mnemo.recipes.memories import KINDS, memory_recipe
from mnemo.recipes.preset_table import Table
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.recipes.transformer_xl import everywhere

PRESETS = Table()
TINY_MEMORIES = Table()
"""tiny-bytes with the memory of each paper."""


@PRESETS.add("tiny-bytes")
def tiny_bytes() -> Recipe:
    """Transformer-XL, bytes of Python's standard library, 0.9M parameters: two minutes on two CPU cores.

    No download needed. 4 layers of width 128, segment and memory of 64 bytes.
    """
    return Recipe(
        model=ModelConfig(num_layers=4, dim=128, num_heads=4, head_dim=32, inner_dim=512, memory=everywhere(64)),
        train=TrainConfig(
            steps=1000,
            batch=16,
            segment=64,
            optimizer=OptimizerConfig(lr=2e-3),
            schedule=ScheduleConfig(warmup=50),
        ),
        evaluation=EvalConfig(batch=10, limit=20_000),
        test=EvalConfig(batch=10, memory=256, limit=None),
    )


for _name, _kind in KINDS.items():
    TINY_MEMORIES.add_variant(
        f"tiny-bytes-{_name}",
        f"{_kind.model}, bytes of Python's standard library: {_kind.about}.\n\n{_kind.source}",
        tiny_bytes,
        functools.partial(memory_recipe, name=_name),
    )


@PRESETS.add("small-bytes")
def small_bytes() -> Recipe:
    """Transformer-XL, bytes of Python's standard library, 5M parameters: hours on a CPU, minutes on a GPU.

    6 layers of width 256, segment and memory of 256 bytes, as in `mnemo bench`.
    """
    return Recipe(
        model=ModelConfig(
            num_layers=6,
            dim=256,
            num_heads=8,
            head_dim=32,
            inner_dim=1024,
            memory=everywhere(256),
            dropout=DropoutConfig.published(0.1),
        ),
        train=TrainConfig(
            steps=10_000,
            batch=8,
            segment=256,
            optimizer=OptimizerConfig(lr=1e-3),
            schedule=ScheduleConfig(warmup=500, min_lr=1e-5),
            eval_every=500,
            checkpoint_every=500,
        ),
        evaluation=EvalConfig(batch=10, limit=100_000),
        test=EvalConfig(batch=10, memory=1024),
    )


@PRESETS.add("small-bytes-rotary")
def small_bytes_rotary() -> Recipe:
    """small-bytes with rotary positions, pre-norm, squared ReLU and AdamW, 5M parameters.

    Everything else, including the memory, is as in small-bytes.
    """
    base = small_bytes()
    model = replace(base.model, positions=Rotary(), norm="pre", final_norm=True, activation="squared_relu")
    optimizer = OptimizerConfig(kind="adamw", lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, clip=1.0)
    return replace(base, model=model, train=replace(base.train, optimizer=optimizer))


@PRESETS.add("tiny-words")
def tiny_words() -> Recipe:
    """Transformer-XL, words of WikiText-2, 3M parameters, adaptive softmax: about ten minutes on two CPU cores.

    4 layers of width 128, segment and memory of 64 words; 33,278 words in three bins.
    """
    return Recipe(
        model=ModelConfig(
            vocab_size=33_278,
            num_layers=4,
            dim=128,
            num_heads=4,
            head_dim=32,
            inner_dim=512,
            embedding=EmbeddingConfig(cutoffs=(4000, 12_000), div_val=2, tie_projections=(False, True, True)),
            memory=everywhere(64),
            dropout=DropoutConfig.published(0.1),
        ),
        data=DataConfig(corpus="wikitext-2"),
        train=TrainConfig(
            steps=3000,
            batch=16,
            segment=64,
            optimizer=OptimizerConfig(lr=1e-3),
            schedule=ScheduleConfig(warmup=200),
            eval_every=500,
            checkpoint_every=500,
        ),
        evaluation=EvalConfig(batch=10, limit=50_000),
        test=EvalConfig(batch=10, memory=256),
    )
