"""Recipes of the algorithmic tasks: one backbone with four kinds of memory.

The published recipes stay at the accuracy of guessing for most of their 250,000 to 900,000 steps. At `small`, sequences
grow: a model first learns one that spans few segments, and continues with the next longer one. All models of a
comparison take the same stages with the same number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mnemo.config import to_json
from mnemo.data.tasks import AnyTask
from mnemo.memory import XL as Cache
from mnemo.memory import MemoryTokens, Plan
from mnemo.model import InitConfig, ModelConfig
from mnemo.papers.grid import BySeed
from mnemo.papers.rmt.published import MT, RMT, XL
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig


def remembering(model: ModelConfig, kind: str, memory: int, std: float = 1.0) -> ModelConfig:
    """The backbone with `memory` slots or tokens of this kind."""
    plan = Plan(long=Cache(length=memory if kind == XL else 0))
    tokens = MemoryTokens(num=memory, write=kind == RMT, std=std) if kind in (MT, RMT) and memory else None
    return replace(model, memory=plan, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Hyperparameters that all models of a comparison share, at one budget."""

    model: ModelConfig
    batch: int
    steps: int
    """Updates of the last stage; a sample in one segment takes as many as one in several."""
    first_steps: int = 0
    """Updates of each stage before the last."""
    lr: float
    warmup: int = 0
    goal: float | None = None
    """Nats a token at which training stops."""
    first_goal: float | None = None
    """The same of each stage before the last."""
    plateau: int | None = None
    """Halve the rate after this many evaluations without improvement, as published, instead of a cosine."""
    eval_every: int
    eval_samples: int | None = None
    """Samples of the validation set that are evaluated during training."""
    std: float = 1.0
    """Standard deviation of the initial memory tokens."""
    clip: float = 0.25
    betas: tuple[float, float] = (0.9, 0.999)
    precision: Literal["fp32", "bf16"] = "fp32"

    @property
    def schedule(self) -> ScheduleConfig:
        if self.plateau is None:
            return ScheduleConfig(warmup=self.warmup)
        return ScheduleConfig(kind="plateau", factor=0.5, patience=self.plateau, min_lr=1e-6)


SHORT = 100
"""Steps below which compiling takes longer than it saves."""
LONG = 10_000
"""Steps from which on compiling the whole graph and checkpoints during training are worth their time."""
SELF_TEST = Training(
    model=ModelConfig(num_layers=1, dim=16, num_heads=2, head_dim=8, inner_dim=16, norm="pre", final_norm=True),
    batch=4,
    steps=2,
    first_steps=1,
    lr=1e-3,
    eval_every=2,
    eval_samples=8,
)
SMALL = Training(
    model=ModelConfig(
        num_layers=2,
        dim=128,
        num_heads=4,
        head_dim=32,
        inner_dim=256,
        norm="pre",
        final_norm=True,
        init=InitConfig(std=0.1),
    ),
    batch=256,
    steps=1500,
    first_steps=500,
    lr=2e-3,
    warmup=100,
    eval_every=100,
    eval_samples=512,
    goal=1e-3,
    first_goal=0.03,
    std=0.5,
    clip=1.0,
    betas=(0.9, 0.98),
)
"""With the norm before each layer, large initial weights and memory tokens no larger than the embeddings, a model
finds the rule within some hundred steps."""
LOOKUP = replace(SMALL, batch=1024, steps=3500, first_steps=1500, eval_every=250)
"""For values that are found by their keys: a sample has few of them to learn from."""
DEEP = replace(SMALL, model=replace(SMALL.model, num_layers=4))
"""As deep as the published models."""


def as_published(name: str) -> Training:
    """The model and the training of a preset."""
    recipe = preset(name)
    return Training(
        model=recipe.model,
        batch=recipe.train.batch,
        steps=recipe.train.steps,
        lr=recipe.train.optimizer.lr,
        plateau=recipe.train.schedule.patience,
        eval_every=recipe.train.eval_every,
    )


COPY_AS_PUBLISHED = replace(as_published("rmt-copy-seg24"), steps=400_000)
RETRIEVAL_AS_PUBLISHED = as_published("rmt-retrieval-seg10")
LONG_AS_PUBLISHED = as_published("rmt-copy120-seg120")
QUADRATIC_AS_PUBLISHED = as_published("rmt-quadratic-seg180")


def at_published_size(published: Training, quick: Training) -> Training:
    """Published layers and widths in bf16; norms, first weights, dropout and rates of `quick`."""
    size = published.model
    model = replace(
        quick.model,
        num_layers=size.num_layers,
        dim=size.dim,
        num_heads=size.num_heads,
        head_dim=size.head_dim,
        inner_dim=size.inner_dim,
    )
    return replace(quick, model=model, precision="bf16")


def task_recipe(
    task: AnyTask, model: ModelConfig, *, segment: int, seed: int, training: Training, last: bool
) -> Recipe:
    """A run on one task: an update for every batch of whole samples, with gradient over all their segments."""
    steps = training.steps if last else training.first_steps
    limit = None if training.eval_samples is None else training.eval_samples * task.num_tokens
    evaluation = EvalConfig(batch=256, limit=limit)
    return Recipe(
        model=replace(model, vocab_size=task.vocab_size),
        data=DataConfig(task=task),
        train=TrainConfig(
            steps=steps,
            batch=training.batch,
            segment=segment,
            optimizer=OptimizerConfig(lr=training.lr, betas=training.betas, clip=training.clip),
            schedule=training.schedule,
            bptt=task.num_segments(segment) - 1,
            bptt_window="tumbling",
            precision=training.precision,
            seed=seed,
            compile=None if steps >= LONG else "layers" if steps >= SHORT else False,
            goal=training.goal if last else training.first_goal,
            log_every=max(1, steps // 40),
            eval_every=min(steps, training.eval_every),
            checkpoint_every=training.eval_every if steps >= LONG else steps,
            keep=1,
        ),
        evaluation=evaluation,
        test=evaluation,
    )


def in_stages(tasks: Sequence[AnyTask], kind: str, *, segment: int, memory: int, training: Training) -> BySeed:
    """Settings of the job `rmt-task`: a run for every task, each continuing with the weights of the one before it."""
    model = remembering(training.model, kind, memory, training.std)
    taken = tasks if training.first_steps else tasks[-1:]

    def settings(seed: int) -> dict[str, Any]:
        stages = [
            task_recipe(task, model, segment=segment, seed=seed, training=training, last=task is tasks[-1])
            for task in taken
        ]
        return {"stages": [to_json(stage) for stage in stages], "maps": False}

    return settings
