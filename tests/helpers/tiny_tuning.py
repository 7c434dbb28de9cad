"""Options of `mnemo tune` for a tiny model and a few steps."""

from __future__ import annotations

from typing import Any

from helpers.real_models import TINY_LLAMA

from mnemo.recipes.tuning import Tuning


def tiny_tuning(**changes: Any) -> Tuning:
    small: dict[str, Any] = dict(
        model=str(TINY_LLAMA),
        memory="tokens",
        book_steps=0.0,
        segment=64,
        stages=("1x96", "2"),
        tokens=4,
        batch=8,
        micro_batch=4,
        rate=1e-3,
        warmup=2,
        steps=4,
        check_every=2,
        check_samples=4,
        test=("1x96", "2"),
        test_samples=4,
        device="cpu",
    )
    return Tuning(**(small | changes))
