"""Every option of a model in every training path equals the plain path: losses, states, gradients."""

from __future__ import annotations

import pytest
from helpers.option_places import (
    EXACT,
    INTERPRETER,
    NATIVE,
    Place,
    cases,
    differences,
    full_precision,
    kernel_cases,
    no_interpreter,
    slow_cases,
)
from helpers.training_paths import PATHS, can_compile, compiled_layers, draws, in_kernels, recorded_and_plain, wrong

from mnemo.model import ModelConfig

pytestmark = pytest.mark.usefixtures(full_precision.__name__)


@pytest.mark.parametrize("config", cases())
@pytest.mark.parametrize("place", [pytest.param(EXACT, id="cpu"), *NATIVE])
def test_paths_equal_the_plain_path(config: ModelConfig, place: Place) -> None:
    assert wrong(config, place, PATHS) == []


@pytest.mark.filterwarnings("default")  # torch warns of itself while it compiles
@pytest.mark.parametrize("config", slow_cases())
@pytest.mark.parametrize("place", [pytest.param(EXACT, id="cpu"), NATIVE[0]])
def test_compiled_layers_equal_the_plain_path(config: ModelConfig, place: Place) -> None:
    assert wrong(config, place, {"layers compiled": (compiled_layers, can_compile)}) == []


@no_interpreter
@pytest.mark.filterwarnings("ignore:attention runs in plain PyTorch")  # keys ahead have kernels in signed order only
@pytest.mark.parametrize("config", [case for case in kernel_cases() if not draws(case.values[0])])
def test_kernels_equal_the_plain_path(config: ModelConfig) -> None:
    assert in_kernels(config, INTERPRETER) == []


@pytest.mark.parametrize("config", [case for case in cases() if not draws(case.values[0])])
@pytest.mark.parametrize("place", [NATIVE[0]])
def test_native_kernels_equal_the_plain_path(config: ModelConfig, place: Place) -> None:
    assert in_kernels(config, place) == []


@pytest.mark.parametrize("config", [case for case in cases() if not draws(case.values[0])])
@pytest.mark.parametrize("place", [pytest.param(EXACT, id="cpu"), NATIVE[0]])
def test_recorded_updates_equal_plain_ones(config: ModelConfig, place: Place) -> None:
    found, expected = recorded_and_plain(config, place)
    assert differences("recorded", found, expected, place.dtype) == []
