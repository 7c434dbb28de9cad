from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import random_model
from helpers.tolerances import assert_close

from mnemo.model import Model
from mnemo.recipes.recipe import AverageConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from mnemo.training.checkpoint_tensors import restore_training
from mnemo.training.optimizers import (
    Average,
    NoAverage,
    Plateau,
    build_optimizer,
    clip_gradients,
    learning_rate,
    set_learning_rate,
    step_rate,
)

TOTAL = 100


def rates(at: list[int], **config: Any) -> list[float]:
    return [learning_rate(ScheduleConfig(**config), 2.0, step, TOTAL) for step in at]


def test_every_schedule_rises_from_one_part_of_the_warm_up_to_the_top() -> None:
    for kind in ("cosine", "linear", "inverse_sqrt", "plateau", "constant"):
        assert rates([0, 1, 3, 4], kind=kind, warmup=4)[:3] == [0.5, 1.0, 2.0]


def test_cosine_spans_what_is_left_after_the_warm_up() -> None:
    assert rates([20, 60, 100, 500], kind="cosine", warmup=20, min_lr=0.4) == pytest.approx([2.0, 1.2, 0.4, 0.4])
    assert rates([0, 25, 100], kind="cosine", steps=50) == pytest.approx([2.0, 1.0, 0.0])


def test_linear() -> None:
    assert rates([20, 60, 100, 500], kind="linear", warmup=20, min_lr=0.4) == pytest.approx([2.0, 1.2, 0.4, 0.4])


def test_inverse_square_root_is_continuous_at_the_warm_up() -> None:
    assert rates([3, 15, 35], kind="inverse_sqrt", warmup=4) == pytest.approx([2.0, 1.0, 2.0 / 3])
    assert rates([0, 3], kind="inverse_sqrt") == pytest.approx([2.0, 1.0])
    assert rates([99], kind="inverse_sqrt", min_lr=0.5) == [0.5]


def test_constant() -> None:
    assert rates([0, 50, 5000], kind="constant") == [2.0, 2.0, 2.0]


def test_published_cosine_starts_at_the_top_and_does_not_know_the_warm_up() -> None:
    found = rates([0, 1, 19, 20, 50, 100], kind="cosine", warmup=20, min_lr=0.4, published=True)
    expected = [2.0, 0.1, 1.9, *(0.4 + 1.6 * (1 + math.cos(math.pi * n / TOTAL)) / 2 for n in (20, 50, 100))]
    assert found == pytest.approx(expected)
    assert rates([0], kind="cosine", published=True) == [2.0]


def test_published_constant_stays_one_step_below_the_top() -> None:
    assert rates([0, 1, 3, 4, 99], kind="constant", warmup=4, published=True) == [2.0, 0.5, 1.5, 1.5, 1.5]
    assert rates([0, 1, 99], kind="constant", warmup=1, published=True) == [2.0, 2.0, 2.0]


def test_published_inverse_square_root() -> None:
    expected = [0.0, 2 / 8, 2 * 4 / 8, 2 * 5**-0.5]
    assert rates([0, 1, 4, 5], kind="inverse_sqrt", warmup=4, published=True) == pytest.approx(expected)
    assert rates([0, 1, 4], kind="inverse_sqrt", published=True) == pytest.approx([2.0, 2.0, 1.0])


@pytest.mark.parametrize("published", [False, True])
def test_plateau_falls_to_its_floor(published: bool) -> None:
    config = ScheduleConfig(kind="plateau", min_lr=0.3, published=published)
    assert [learning_rate(config, 2.0, 50, TOTAL, factor) for factor in (1.0, 0.5, 0.1)] == [2.0, 1.0, 0.3]


@pytest.mark.parametrize("patience", [0, 2])
def test_plateau_falls_when_torch_says_so(patience: int) -> None:
    config = ScheduleConfig(kind="plateau", patience=patience, factor=0.3)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=patience, eps=0.0)
    ours = Plateau()
    for loss in (5.0, 4.0, 4.0, 4.5, 3.0, 2.9999, 3.1, 3.1, 2.0, 2.5, 2.4, 2.3, 2.2):
        ours = ours.after(loss, config)
        theirs.step(loss)
        assert ours.factor == pytest.approx(optimizer.param_groups[0]["lr"])
    assert ours.factor < 1


def test_the_rate_of_a_step_follows_its_length_and_the_average() -> None:
    config = TrainConfig(
        steps=TOTAL,
        segment=8,
        optimizer=OptimizerConfig(lr=2.0, scale_lr_by_length=True),
        schedule=ScheduleConfig(kind="constant"),
        average=AverageConfig(start=10, lr=0.5),
    )
    assert [step_rate(config, step, length=4) for step in (9, 10)] == [1.0, 0.25]
    assert step_rate(TrainConfig(optimizer=OptimizerConfig(lr=2.0)), 0, length=4) == 2.0


def give_gradients(model: Model, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def test_clipping_scales_by_the_published_coefficient() -> None:
    model = random_model()
    give_gradients(model, 1)
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in before]).norm()
    assert_close(clip_gradients(model.parameters(), None), norm)
    assert_close(clip_gradients(model.parameters(), 1e9), norm)
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]
    assert_close(clip_gradients(model.parameters(), 0.25), norm)
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert_close(parameter.grad, gradient * (0.25 / (norm + 1e-6)))  # type: ignore[arg-type]


OPTIMIZERS: dict[str, tuple[OptimizerConfig, Any, dict[str, Any]]] = {
    "adam": (OptimizerConfig(weight_decay=0.1, betas=(0.8, 0.9)), torch.optim.Adam, {"betas": (0.8, 0.9)}),
    "adamw": (OptimizerConfig(kind="adamw", weight_decay=0.1), torch.optim.AdamW, {}),
    "sgd": (OptimizerConfig(kind="sgd", weight_decay=0.1, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_are_torchs_plain_ones(kind: str) -> None:
    config, theirs, options = OPTIMIZERS[kind]
    ours_model, their_model = random_model(), random_model()
    ours = build_optimizer(ours_model, config)
    reference = theirs(their_model.parameters(), lr=1e-2, weight_decay=0.1, foreach=False, **options)
    set_learning_rate(ours, 1e-2)
    for step in range(3):
        for model, optimizer in ((ours_model, ours), (their_model, reference)):
            give_gradients(model, step)
            optimizer.step()
    for ours_now, theirs_now in zip(ours_model.parameters(), their_model.parameters(), strict=True):
        assert_close(ours_now, theirs_now)


MOMENTUM = OptimizerConfig(kind="sgd", lr=0.1, momentum=0.9)


def test_momentum_begins_at_the_first_gradient_of_each_weight() -> None:
    model, theirs = random_model(), random_model()
    ours, reference = build_optimizer(model, MOMENTUM), torch.optim.SGD(theirs.parameters(), 0.1, 0.9, foreach=False)
    for step in range(3):
        for each, optimizer in ((model, ours), (theirs, reference)):
            give_gradients(each, step)
            if step == 0:
                list(each.parameters())[-1].grad = None
            optimizer.step()
    for ours_now, theirs_now in zip(model.parameters(), theirs.parameters(), strict=True):
        assert_close(ours_now, theirs_now)


def test_checkpoints_of_some_momentum_buffers_are_continued() -> None:
    model = random_model()
    names = [name for name, _ in model.named_parameters()]
    tensors = {f"optimizer/{name}/momentum_buffer": torch.ones_like(model.get_parameter(name)) for name in names[1:]}
    optimizer = build_optimizer(model, MOMENTUM)
    restore_training(tensors, model, optimizer, NoAverage(), 0, Path("run"), rank=None)
    kept = [float(optimizer.state[parameter]["momentum_buffer"].mean()) for parameter in model.parameters()]
    assert kept == [0.0] + [1.0] * (len(names) - 1)
    give_gradients(model, 0)
    optimizer.step()


def test_embedding_tables_have_a_rate_of_their_own() -> None:
    model = random_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerConfig(kind="sgd", embedding_lr_factor=3.0))
    set_learning_rate(optimizer, 0.1)
    give_gradients(model, 0)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        rate = 0.3 if name.startswith("embedding.tables") else 0.1
        assert_close(parameter.detach(), before[name] - rate * parameter.grad)


@pytest.mark.parametrize("kind", ["uniform", "ema"])
def test_averages(kind: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    average = Average([weight], AverageConfig(start=2, kind=kind, decay=0.75))
    for step in range(1, 6):
        weight.data.fill_(float(step**2))
        average.include(step)
    fading = 0.75 * (0.75 * (0.75 * 4 + 0.25 * 9) + 0.25 * 16) + 0.25 * 25
    expected = (4 + 9 + 16 + 25) / 4 if kind == "uniform" else fading
    own = weight.data_ptr()
    with average.applied():
        assert_close(weight.detach(), torch.full_like(weight, expected))
    assert weight.data_ptr() == own and weight.tolist() == [25.0, 25.0]


def test_before_its_start_an_average_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    average = Average([weight], AverageConfig(start=2))
    average.include(1)
    with average.applied():
        assert weight.tolist() == [1.0, 1.0]
    assert average.count == 0
