"""Limits on gradients and updates: by the mean gradient norm, and for Muon's steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ranks
from helpers.divergence import contents, last
from helpers.monitors import Signaller
from helpers.recorders import Rerun
from helpers.tolerances import TOLERANCES
from helpers.toy_runs import exact, losses, metrics, recipe, run
from torch import nn

from mnemo.recipes.recipe import OptimizerConfig, Recipe
from mnemo.training import create_run, train
from mnemo.training import trainer as trainer_module
from mnemo.training.checkpointing import MEAN_NORM
from mnemo.training.engine import Engine
from mnemo.training.mean_norm import MEMORY_OF_NORM, MeanNorm
from mnemo.training.muon import Muon, limits
from mnemo.training.optimizers import clip_gradients
from mnemo.training.processes import joined

KINDS: tuple[Any, ...] = ("ddp", "fsdp")


def clipped(norms: list[float], factor: float, limit: float | None = None) -> tuple[list[float], MeanNorm]:
    """The norms of a sequence of gradients after clipping."""
    weight, guard, found = nn.Parameter(torch.zeros(4, dtype=torch.float64)), MeanNorm(factor, torch.device("cpu")), []
    for norm in norms:
        weight.grad = torch.full((4,), norm / 2, dtype=torch.float64)
        assert float(clip_gradients([weight], limit, guard)) == pytest.approx(norm)
        found.append(float(weight.grad.norm()))
    return found, guard


def test_norms_far_above_their_mean_are_limited() -> None:
    found, guard = clipped([1.0, 1.0, 50.0, 1.0], factor=3.0)
    assert found == pytest.approx([1.0, 1.0, 3.0, 1.0], rel=1e-5)
    after = MEMORY_OF_NORM * (MEMORY_OF_NORM + (1 - MEMORY_OF_NORM) * 3.0) + (1 - MEMORY_OF_NORM)
    assert float(guard.mean) == pytest.approx(after, rel=1e-5)


def test_the_fixed_limit_still_holds() -> None:
    assert clipped([1.0, 50.0], factor=3.0, limit=0.25)[0] == pytest.approx([0.25, 0.25], rel=1e-4)


def test_a_norm_that_is_not_finite_does_not_enter_the_mean() -> None:
    guard = clipped([2.0], factor=3.0)[1]
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([float("inf"), 1.0])
    clip_gradients([weight], None, guard)
    assert float(guard.mean) == 2.0


@pytest.mark.parametrize("is_recorded", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_the_mean_is_saved_and_resumed(is_recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_recorded:
        monkeypatch.setattr(trainer_module, "Engine", lambda *a, **o: Engine(*a, recorder=Rerun(), **o))
    wanted = recipe(optimizer=OptimizerConfig(clip=None, clip_mean=1.01, lr=0.01))
    run(tmp_path / "whole", of=wanted)
    create_run(wanted, tmp_path / "stopped")
    train(tmp_path / "stopped", monitor=Signaller(15, step=6))
    train(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    run(tmp_path / "free", of=recipe(optimizer=OptimizerConfig(clip=None, lr=0.01)))
    assert metrics(tmp_path / "free") != metrics(tmp_path / "whole")


LIMITED = recipe(
    **exact(z_loss=0.1, optimizer=OptimizerConfig(clip=None, clip_mean=1.01, lr=0.01), steps=4, batch=4, device="cpu")
)


def train_together(folder: Path) -> None:
    with joined("cpu", 60) as world:
        for kind in KINDS:
            wanted = replace(LIMITED, train=replace(LIMITED.train, parallel=kind))
            world.main(partial(create, wanted, folder / kind))
            train(folder / kind, world=world)


def create(wanted: Recipe, path: Path) -> str:
    return str(create_run(wanted, path))


@pytest.mark.thorough
def test_two_processes_limit_gradients_as_one_does(tmp_path: Path) -> None:
    run(tmp_path / "alone", of=LIMITED)
    ranks.run(2, train_together, tmp_path)
    tolerance = TOLERANCES[torch.float32]  # the mean is kept in float32
    for kind in KINDS:
        assert losses(tmp_path / kind) == pytest.approx(losses(tmp_path / "alone"), rel=tolerance.rtol)
        means = [float(last(tmp_path / name).tensors("training")[MEAN_NORM]) for name in (kind, "alone")]
        assert means[0] == pytest.approx(means[1], rel=tolerance.rtol) and means[0] > 0


def test_steps_of_muon_are_limited_to_a_share_of_the_weights() -> None:
    changes = {}
    for share in (None, 0.01):
        torch.manual_seed(3)
        weights = [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.zeros(4, 4))]
        before = [weight.detach().clone() for weight in weights]
        optimizer = Muon([{"params": weights, "parts": [1, 1]}], lr=0.1, update_clip=share)
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        changes[share] = [weight.detach() - old for weight, old in zip(weights, before, strict=True)]
    sizes = [float(before[0].norm()), 1e-2 * 4.0]  # new weights count as at least 0.01 on average
    for free, limited, size in zip(changes[None], changes[0.01], sizes, strict=True):
        assert float(limited.norm()) == pytest.approx(0.01 * size, rel=1e-4) and free.norm() > limited.norm()
        torch.testing.assert_close(limited / limited.norm(), free / free.norm())
    small = [torch.full((2, 2), 1e-4)]
    assert [float(factor) for factor in limits([torch.ones(2, 2)], small, 0.1, 0.05)] == [1.0]
