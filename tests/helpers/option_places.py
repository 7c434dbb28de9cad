"""Where option tests run, and how they compare: float64 on a CPU, kernels in Triton's interpreter, natively on CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from helpers.marks import FURTHER
from helpers.model_options import BASES, SMALL, options
from helpers.models import set_seed
from helpers.tolerances import TOLERANCES, assert_close
from torch import Tensor

from mnemo.memory import XL, Plan
from mnemo.memory.state import State, leaves
from mnemo.model import Model, ModelConfig

BATCH, SEGMENT = 2, 3
Outcome = dict[str, Tensor]
"""Outputs, states and gradients by name."""


class Place(NamedTuple):
    device: str
    dtype: torch.dtype


EXACT = Place("cpu", torch.float64)
INTERPRETER = Place("cpu", torch.float32)
"""Kernels compute in single precision at most. Their tests have this type, so that they take every call."""
NATIVE = [
    pytest.param(Place("cuda", torch.float32), marks=pytest.mark.gpu, id="cuda-float32"),
    pytest.param(Place("cuda", torch.bfloat16), marks=pytest.mark.gpu, id="cuda-bfloat16"),
]
no_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run natively here")


def cases() -> list[Any]:
    """Every option of the first base; those of the others, which differ in what options meet, are thorough.

    Without a GPU, sizes and single fields are thorough too: mechanisms, positions and other parts are options.
    """
    first = next(iter(BASES))
    return [
        pytest.param(config, id=f"{base}-{name}", marks=_mark(name) if base == first else pytest.mark.thorough)
        for base, around in BASES.items()
        for name, config in options(around).items()
    ]


SIZES = ("vocab_size", "num_layers", "dim", "num_heads", "head_dim", "inner_dim", "norm_eps")


def _mark(option: str) -> Any:
    is_part = option.count("=") <= 1 and not option.startswith(SIZES)
    is_memory = option.startswith("memory=Plan.") and option.count("=") == 2 and ".short=" not in option
    return () if is_part or is_memory else FURTHER


SLOW = {"base": (), "head_gate=True": FURTHER, "qk_norm=True": FURTHER}
"""Options for paths that take long, and their marks; each adds another part to a layer."""


def slow_cases() -> list[Any]:
    """For slow paths; options that are not in SLOW are thorough, and fields of memories are left out."""
    return [
        pytest.param(config, id=name, marks=SLOW.get(name, pytest.mark.thorough))
        for name, config in options(SMALL).items()
        if name.count("=") <= 2
    ]


def kernel_cases() -> list[Any]:
    """For kernels of attention in Triton's interpreter, which takes seconds: one layer, and every option thoroughly."""
    small = replace(SMALL, num_layers=1, memory=Plan(long=XL(length=3)))
    thorough = [pytest.param(*case.values, id=case.id, marks=pytest.mark.thorough) for case in slow_cases()]
    return [pytest.param(small, id="one layer"), *thorough]


def random_weights(config: ModelConfig, deviation: float = 0.3) -> Model:
    """A model whose initial weights are moved at random, so that every option leaves a trace, biases included."""
    set_seed(0)
    model = Model(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64), alpha=deviation)
    return model.eval()


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Convolutions and recurrent layers of a GPU round single precision to 10 bits by default."""
    before = torch.backends.cudnn.allow_tf32
    _allow_tf32(False)
    yield
    _allow_tf32(before)


def _allow_tf32(allowed: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch recommend a newer name, which others lack
        torch.backends.cudnn.allow_tf32 = allowed


def at_place(model: Model, place: Place) -> tuple[Model, Model]:
    """The model at a place, and a float64 model on the CPU with exactly the same weights; both may be the model."""
    if place == EXACT and next(model.parameters()).dtype == place.dtype:
        return model, model
    there = Model(model.config)
    there.load_state_dict(model.state_dict())
    there = there.to(place.dtype)
    exact = Model(model.config).double()
    exact.load_state_dict(there.state_dict())
    return there.to(place.device).train(model.training), exact.train(model.training)


def with_state(outcome: Outcome, state: State) -> Outcome:
    return {**outcome, **{f"state.{path}": leaf for path, leaf in leaves(state)}}


def differences(name: str, found: Outcome, expected: Outcome, dtype: torch.dtype) -> list[str]:
    """One line for each tensor that was found and is not the expected one."""
    assert found, name
    lines = []
    for part, tensor in found.items():
        try:
            _compare(tensor.detach().cpu(), expected[part].detach(), dtype)
        except AssertionError as error:
            lines.append(f"{name}: {part}: {' '.join(str(error).split())}")
    return lines


def _compare(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Element by element in float64; by the norm of the difference in types that round every sum."""
    if dtype == torch.float64 or not expected.is_floating_point():
        assert_close(found, expected)
        return
    assert found.shape == expected.shape, (found.shape, expected.shape)
    error = float((found.double() - expected).norm())
    assert error <= TOLERANCES[dtype].rtol * max(1.0, float(expected.norm())), f"off by {error:.2e}"
