"""Every algorithmic task with few samples, and tiny models for them."""

from __future__ import annotations

from typing import Any

import pytest

from mnemo.data.tasks import AnyTask, Copy, MultiQuery, Passkey, Quadratic, Retrieval, Reverse
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.model import ModelConfig

FEW: dict[str, Any] = {"train": 40, "valid": 12, "test": 8}
TASKS: list[AnyTask] = [
    Copy(symbols=6, **FEW),
    Reverse(symbols=6, **FEW),
    Retrieval(**FEW),
    Quadratic(**FEW),
    Quadratic(largest_root=10, **FEW),
    MultiQuery(pairs=4, queries=3, keys=6, values=5, **FEW),
    Passkey(length=20, digits=3, **FEW),
]
EVERY_TASK = pytest.mark.parametrize("task", TASKS, ids=[task.label for task in TASKS])
MODELS: dict[str, dict[str, Any]] = {
    "none": {"memory": Plan(long=XL(length=0))},
    "xl": {"memory": Plan(long=XL(length=4))},
    "tokens": {"memory": Plan(long=XL(length=0)), "tokens": MemoryTokens(num=3)},
    "prefix": {"memory": Plan(long=XL(length=0)), "tokens": MemoryTokens(num=3, write=False)},
}


def tiny(task: AnyTask, kind: str = "tokens") -> ModelConfig:
    """The smallest model of a kind in `MODELS` for a task."""
    sizes: dict[str, Any] = dict(num_layers=2, dim=8, num_heads=2, head_dim=4, inner_dim=8)
    return ModelConfig(vocab_size=task.vocab_size, **sizes, **MODELS[kind])
