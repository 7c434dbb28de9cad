"""Adam's step from gradients in half precision against PyTorch's, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.tolerances import assert_close
from torch import Tensor, nn

pytest.importorskip("triton")

from mnemo.training import half_adam
from mnemo.training.half_adam import clipped_step, takes_half_gradients
from mnemo.training.muon import Muon
from mnemo.training.recorded_update import put_rates_on_device

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(24, 40)] * 18 + [(33, 16), (16, 33), (4, 3)]
"""More equal ones than fit one launch, and of different shapes with equally many elements."""


def adam(kind: Any, seed: int = 0) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    random = torch.Generator().manual_seed(seed)
    weights = [nn.Parameter(torch.randn(shape, generator=random).to(DEVICE)) for shape in [*SHAPES, (40,), (7, 8)]]
    groups = [{"params": weights[:-1], "lr": 0.1}, {"params": weights[-1:], "lr": 0.03}]
    return weights, kind(groups, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.2, fused=True)


def draw(weights: list[nn.Parameter], size: float, random: torch.Generator) -> list[Tensor]:
    return [torch.randn(weight.shape, generator=random).mul(size).to(DEVICE, torch.bfloat16) for weight in weights]


def plain_step(
    weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, gradients: list[Tensor], limit: float | None
) -> Tensor:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.float()
    norm = nn.utils.clip_grad_norm_(weights, float("inf") if limit is None else limit)
    optimizer.step()
    return norm


def half_step(
    weights: list[nn.Parameter], optimizer: torch.optim.Optimizer, gradients: list[Tensor], limit: float | None
) -> Tensor:
    """The matrices' gradients are half, those of the last two weights single."""
    for weight, gradient in list(zip(weights, gradients, strict=True))[-2:]:
        weight.grad = gradient.float()
    return clipped_step(optimizer, dict(zip(weights[:-2], gradients[:-2], strict=True)), limit)


@pytest.mark.native
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("limit", [None, 1.0])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_steps_are_those_of_pytorch(kind: Any, limit: float | None, on_device: bool) -> None:
    """Three of them, of which the second one's gradients are too small to be clipped."""
    results = []
    for step in (plain_step, half_step):
        (weights, optimizer), random = adam(kind), torch.Generator().manual_seed(1)
        if on_device:
            put_rates_on_device(optimizer, DEVICE)
        norms = [step(weights, optimizer, draw(weights, size, random), limit) for size in (1.0, 1e-3, 5.0)]
        moments = [value for weight in weights for value in optimizer.state[weight].values()]
        results.append([*norms, *(weight.detach() for weight in weights), *moments])
    for expected, found in zip(*results, strict=True):
        assert_close(found, expected)


@pytest.mark.native
def test_both_kinds_of_steps_continue_each_other() -> None:
    """The state is PyTorch's own: a checkpoint of one is one of the other."""
    (weights, optimizer), random = adam(torch.optim.Adam), torch.Generator().manual_seed(1)
    gradients = [draw(weights, 1.0, random) for _ in range(2)]
    half_step(weights, optimizer, gradients[0], 1.0)
    others, other = adam(torch.optim.Adam, seed=5)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with torch.no_grad():
        for weight, value in zip(others, weights, strict=True):
            weight.copy_(value)
    plain_step(weights, optimizer, gradients[1], 1.0)
    half_step(others, other, gradients[1], 1.0)
    for found, expected in zip(others, weights, strict=True):
        assert_close(found, expected)


@pytest.mark.native
def test_tensors_that_the_kernel_does_not_take_are_cast() -> None:
    (weights, optimizer), random = adam(torch.optim.Adam), torch.Generator().manual_seed(1)
    gradients = draw(weights, 1.0, random)
    (others, plain), wanted = adam(torch.optim.Adam), [gradient.clone() for gradient in gradients]
    gradients[0] = gradients[0].t().contiguous().t()
    half_step(weights, optimizer, gradients, 1.0)
    plain_step(others, plain, wanted, 1.0)
    assert weights[0].grad is not None and weights[1].grad is None
    for found, expected in zip(weights, others, strict=True):
        assert_close(found, expected)


@pytest.mark.native
def test_the_first_use_on_a_device_tests_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert half_adam._failure(DEVICE, torch.bfloat16, 0) is None
    monkeypatch.setattr(half_adam, "clipped_step", lambda optimizer, gradients, limit: None)
    found = half_adam._failure(DEVICE, torch.bfloat16, 0)
    assert found is not None and found.startswith("error")


def test_other_optimizers_and_devices_take_their_own_steps() -> None:
    weight, cpu = nn.Parameter(torch.zeros(2, 2)), torch.device("cpu")
    assert not takes_half_gradients(torch.optim.Adam([weight]), cpu)
    for other in (
        torch.optim.SGD([weight]),
        Muon([{"params": [weight]}], 0.1),
        torch.optim.Adam([weight], amsgrad=True),
    ):
        assert not takes_half_gradients(other, torch.device("cuda"))
