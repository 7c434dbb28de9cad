"""Whether a run in fp32 on a CPU would be faster in bf16.

Only commands that begin a run and take the flag say so: a run that goes on keeps its precision.
"""

from __future__ import annotations

import torch

from mnemo.inference.narrow_weights import obstacle
from mnemo.recipes.recipe import Recipe
from mnemo.storage.weights import pick_device
from mnemo.training.monitor import Monitor

LEAST_WIDTH, LEAST_ROWS = 128, 256
"""Smaller models and batches gain little or nothing: most of their time is that of calling operations."""


def give_precision_hint(recipe: Recipe, monitor: Monitor) -> None:
    hint = precision_hint(recipe, pick_device(recipe.train.device))
    if hint is not None:
        monitor.note(f"hint: {hint}")


def precision_hint(recipe: Recipe, device: torch.device) -> str | None:
    """A line for the start of a new run; None if bf16 is not clearly faster."""
    train = recipe.train
    rows = train.batch * train.segment // train.accumulate
    if train.precision != "fp32" or recipe.model.dim < LEAST_WIDTH or rows < LEAST_ROWS:
        return None
    if device.type != "cpu" or obstacle("bf16", device) is not None:
        return None
    return "this processor has products in bf16: --train.precision bf16 trains about 1.5 to 1.9 times as fast"
