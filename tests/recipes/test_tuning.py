"""Options of tuning: numbers that training cannot use are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mnemo import MnemoError
from mnemo.recipes.tuning import Tuning


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(({"steps": value}, f"--steps {value} must be positive") for value in (0, -3)),
        *(({"rate": value}, f"--rate {value} must be positive") for value in (0.0, -1e-4, math.nan, math.inf)),
        *(({"memory_rate": value}, f"--memory-rate {value} must be positive") for value in (0.0, math.nan)),
        *(({"minutes": value}, f"--minutes {value} must be positive") for value in (0.0, -1.0, math.nan, math.inf)),
        *(({"pause_after": value}, f"--pause-after {value} must be minutes") for value in (-1.0, math.nan)),
        *(({"seed": value}, f"--seed {value} must be from 0 to 4294967295") for value in (-1, 2**32)),
        ({"save_every": 0}, "--save-every 0 must be positive"),
        ({"lora": -1}, "--lora -1 is negative"),
        ({"bptt": -1}, "--bptt -1 is negative"),
        ({"tokens": -1}, "--tokens -1 is negative"),
        ({"warmup": -1}, "--warmup -1 is negative"),
    ],
)
def test_numbers_that_training_cannot_use_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(MnemoError, match=message):
        Tuning(model="model", **wrong)


def test_limits_are_allowed() -> None:
    assert Tuning(model="model", lora=0, warmup=0, bptt=None, pause_after=0.0, steps=1, seed=2**32 - 1).max_steps == 1
