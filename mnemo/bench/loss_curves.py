"""Compare loss curves of fast attention and of the reference equation with the spread between two seeds.

Both have the same initial weights, text and dropout. The remaining difference is rounding, which must not change a
curve by more than another seed does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mnemo.memory import XL, Plan
from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.ops import Implementation, using
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, ScheduleConfig, TrainConfig
from mnemo.training import create_run, train

SEEDS = (1, 2)
WINDOWS = 20
"""Number of parts of a run whose mean losses are compared."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    steps: int
    fast: tuple[tuple[float, ...], ...]
    """Loss in nats per token in each part of the run, for each seed"""
    reference: tuple[tuple[float, ...], ...]
    fast_valid: tuple[float, ...]
    """Final validation loss for each seed"""
    reference_valid: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Largest difference between the two curves of one seed."""
        return max(map(_distance, self.fast, self.reference))

    @property
    def spread(self) -> float:
        """Largest difference between the curves of two seeds of the reference."""
        return _distance(*self.reference)

    @property
    def agree(self) -> bool:
        return self.difference <= self.spread

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference, "spread": self.spread, "agree": self.agree}


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def curve_recipe(device: torch.device, steps: int) -> Recipe:
    """Return a byte model with a memory as long as the segment; bf16 on a GPU."""
    is_gpu = device.type == "cuda"
    dim, layers, segment = (256, 6, 256) if is_gpu else (64, 2, 32)
    return Recipe(
        model=ModelConfig(
            num_layers=layers,
            dim=dim,
            num_heads=dim // 32,
            head_dim=32,
            inner_dim=4 * dim,
            memory=Plan(long=XL(length=segment)),
            dropout=DropoutConfig(input=0.1, projection=0.1, feed_forward=0.1, output=0.1),
        ),
        data=DataConfig(drop_last=True),
        train=TrainConfig(
            steps=steps,
            batch=16,
            segment=segment,
            optimizer=OptimizerConfig(lr=5e-4),
            schedule=ScheduleConfig(warmup=steps // 10),
            precision="bf16" if is_gpu else "fp32",
            compile=False,
            device=str(device),
            log_every=max(1, steps // WINDOWS),
            eval_every=steps,
            checkpoint_every=steps,
            keep=1,
        ),
        evaluation=EvalConfig(batch=16, limit=100_000 if is_gpu else 4_000),
    )


def loss_curves(device: torch.device, steps: int, show: ShowProgress = silent) -> Curves:
    """Train with both implementations and two seeds, in a temporary folder."""
    ways: tuple[Implementation, ...] = ("auto", "reference")
    found: dict[Implementation, list[tuple[tuple[float, ...], float]]] = {way: [] for way in ways}
    with show("training", len(ways) * len(SEEDS)) as bar, tempfile.TemporaryDirectory() as folder:
        for way in ways:
            for seed in SEEDS:
                found[way].append(_train(Path(folder) / f"{way}-{seed}", device, steps, seed, way))
                bar.advance(note=f"{way}, seed {seed}: valid {found[way][-1][1]:.4f}")
    curves = {way: tuple(curve for curve, _ in runs) for way, runs in found.items()}
    valid = {way: tuple(loss for _, loss in runs) for way, runs in found.items()}
    return Curves(
        steps=steps,
        fast=curves["auto"],
        reference=curves["reference"],
        fast_valid=valid["auto"],
        reference_valid=valid["reference"],
    )


class _Losses:
    """A tracker that stores the losses of a run."""

    def __init__(self) -> None:
        self.train: list[float] = []
        self.valid: list[float] = []

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.train += [values["train/loss"]] if "train/loss" in values else []
        self.valid += [values["valid/loss"]] if "valid/loss" in values else []

    def finish(self) -> None:
        pass


def _train(
    folder: Path, device: torch.device, steps: int, seed: int, way: Implementation
) -> tuple[tuple[float, ...], float]:
    recipe, losses = curve_recipe(device, steps), _Losses()
    create_run(replace(recipe, train=replace(recipe.train, seed=seed)), folder)
    with using(way):
        train(folder, tracker=losses)
    return tuple(losses.train), losses.valid[-1]
