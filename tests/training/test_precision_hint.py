"""The hint that bf16 is faster on a CPU: only for processors and sizes where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mnemo.model import ModelConfig
from mnemo.recipes.recipe import DataConfig, Recipe, TrainConfig
from mnemo.training import precision_hint as hints
from mnemo.training.precision_hint import precision_hint

CPU = torch.device("cpu")
MODEL = ModelConfig(vocab_size=16, num_layers=2, dim=128, num_heads=4, head_dim=32, inner_dim=256)
RECIPE = Recipe(model=MODEL, data=DataConfig(corpus="any"), train=TrainConfig(batch=8, segment=32))


@pytest.fixture(autouse=True)
def bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "obstacle", lambda weights, device: None)


def with_training(**changes: object) -> Recipe:
    return replace(RECIPE, train=replace(RECIPE.train, **changes))  # type: ignore[arg-type]


def test_a_run_in_fp32_is_told_that_bf16_is_faster() -> None:
    assert "--train.precision bf16" in str(precision_hint(RECIPE, CPU))


@pytest.mark.parametrize(
    "recipe",
    [
        with_training(precision="bf16"),
        with_training(batch=4),
        with_training(accumulate=2),
        replace(RECIPE, model=replace(MODEL, dim=64)),
    ],
    ids=["already", "few rows", "small parts", "narrow"],
)
def test_nothing_is_said_where_bf16_gains_little(recipe: Recipe) -> None:
    assert precision_hint(recipe, CPU) is None


def test_nothing_is_said_on_other_devices_and_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision_hint(RECIPE, torch.device("cuda")) is None
    monkeypatch.setattr(hints, "obstacle", lambda weights, device: "too old")
    assert precision_hint(RECIPE, CPU) is None
