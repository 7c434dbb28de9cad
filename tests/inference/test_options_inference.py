"""Every option of a model in every inference runner equals the plain path: outputs, losses, states."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.inference_runners import KERNEL_RUNNERS, RUNNERS, wrong
from helpers.option_places import (
    EXACT,
    INTERPRETER,
    NATIVE,
    Place,
    cases,
    full_precision,
    no_interpreter,
)

from mnemo.inference.ring_decoder import suits
from mnemo.model import ModelConfig
from mnemo.ops.cuda import decode_kernels

pytestmark = pytest.mark.usefixtures(full_precision.__name__)


def option(case: Any) -> str:
    """Name of a case without its base."""
    return case.id.partition("-")[2]


TRAINING_ONLY = ("dropout", "init", "activation_penalty", "temporal_penalty")
"""Options that inference takes no notice of, as the thorough cases show."""
EVERY = [
    pytest.param(*case.values, id=case.id, marks=pytest.mark.thorough)
    if option(case).startswith(TRAINING_ONLY)
    else case
    for case in cases()
]


@pytest.mark.parametrize("config", EVERY)
@pytest.mark.parametrize("place", [pytest.param(EXACT, id="cpu"), NATIVE[0]])
def test_runners_equal_the_plain_path(config: ModelConfig, place: Place) -> None:
    assert wrong(config, place, tuple(RUNNERS)) == []


SEEN_IN_RINGS = [case for case in cases() if not option(case).startswith(TRAINING_ONLY) and suits(case.values[0])]


@pytest.mark.parametrize("config", SEEN_IN_RINGS)
@pytest.mark.parametrize("place", [NATIVE[1]])
def test_weights_in_half_precision(config: ModelConfig, place: Place) -> None:
    """For models that decode in rings: others keep their weights, and compute in half precision by autocast."""
    assert wrong(config, place, tuple(RUNNERS)) == []


INTERPRETED = [
    case if option(case) == "base" else pytest.param(*case.values, id=case.id, marks=pytest.mark.thorough)
    for case in SEEN_IN_RINGS
]
"""Triton's interpreter is slow, so that most options are thorough."""


@no_interpreter
@pytest.mark.parametrize("config", INTERPRETED)
def test_decode_kernels_equal_the_plain_path(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_kernels, "INTERPRETED", True)
    assert wrong(config, INTERPRETER, KERNEL_RUNNERS) == []
