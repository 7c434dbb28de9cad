"""Recipes that learn an algorithmic task in few updates, so that one GPU answers a paper's question in minutes.

The published models need hundreds of thousands of updates, nearly all of them on a plateau at chance. With norms before
the branches and a last one behind them, first weights as wide as their inputs ask for (0.09, not 0.02), a learning rate
of 2e-3 behind a short warm-up, no dropout and larger batches, the plateau ends after a few hundred. With many segments
it ends sooner when a model has learned fewer symbols first (`create_run(..., source=RUN)`). All models of a comparison
are trained alike.
"""

from __future__ import annotations

from typing import Literal

from mnemo.data.tasks import AnyTask
from mnemo.errors import MnemoError
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.model import InitConfig, ModelConfig
from mnemo.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig

TaskModel = Literal["baseline", "mt", "xl", "rmt"]
"""No memory; memory tokens that are only read; Transformer-XL's cache; memory tokens that are read and written."""
SOLVED = 2e-3
"""Nats a token at which training stops: hardly one symbol in a thousand is wrong."""


def quick_task_recipe(
    task: AnyTask,
    model: TaskModel,
    segments: int,
    seed: int,
    *,
    memory: int | None = None,
    steps: int = 3000,
    batch: int = 256,
    lr: float = 2e-3,
    num_layers: int = 2,
    dim: int = 128,
    precision: Literal["fp32", "bf16"] = "bf16",
) -> Recipe:
    """A model that reads samples in so many segments, with as much memory as a segment has tokens, or `memory`."""
    segment = -(-task.num_tokens // max(1, segments))
    if task.num_segments(segment) != segments:
        raise MnemoError(f"{task.num_tokens} tokens of {task.label} cannot be cut into {segments} equal segments")
    kept = segment if memory is None else memory
    config = ModelConfig(
        vocab_size=task.vocab_size,
        num_layers=num_layers,
        dim=dim,
        num_heads=4,
        head_dim=32,
        inner_dim=2 * dim,
        norm="pre",
        final_norm=True,
        init=InitConfig(std=0.09),
        memory=Plan(long=XL(length=kept if model == "xl" else 0)),
        tokens=MemoryTokens(num=kept, write=model == "rmt") if model in ("rmt", "mt") else None,
    )
    train = TrainConfig(
        steps=steps,
        batch=batch,
        segment=segment,
        bptt=segments - 1,
        bptt_window="tumbling",
        optimizer=OptimizerConfig(lr=lr, clip=1.0),
        schedule=ScheduleConfig(kind="cosine", warmup=100, min_lr=lr / 10),
        goal=SOLVED,
        precision=precision,
        seed=seed,
        compile=False,
        log_every=50,
        eval_every=250,
        checkpoint_every=steps,
        keep=1,
    )
    evaluation = EvalConfig(batch=1000, limit=1000 * task.num_tokens)
    return Recipe(model=config, data=DataConfig(task=task), train=train, evaluation=evaluation, test=evaluation)
