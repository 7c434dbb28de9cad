"""The size of associative memories during a long text: a memory that grows without limit breaks the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.hf.memory_tokens.carried import associations_of
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.memory_tokens.layer_memory import AssociativeTokens, Memories

DIGITS = 5


class GrowthRecord:
    """Norms of the memories of every layer after 1, 2, 4, 8, ... segments, as means over the rows of a batch."""

    def __init__(self) -> None:
        self.sizes: list[dict[str, Any]] = []

    def add(self, segments: int, memory: Any) -> None:
        memories = associations_of(memory)
        if memories and segments & (segments - 1) == 0:
            self.sizes.append({"segments": segments} | norms(memories))


def norms(memories: Memories) -> dict[str, list[float]]:
    """Return the mean norms of the matrix and the normaliser of every layer."""
    return {
        "matrix": _rounded([layer.matrix.flatten(1).norm(dim=1).mean() for layer in memories]),
        "normaliser": _rounded([layer.normaliser.flatten(1).norm(dim=1).mean() for layer in memories]),
    }


@torch.no_grad()
def write_strengths(model: Any, ids: Tensor, memory: Any) -> list[float]:
    """Return the mean strength with which a segment (B, T) after `memory` would write, for every layer."""
    found: list[Tensor] = []
    with _calls_of_strength(memory_model(model), found), torch.compiler.set_stance("force_eager"):
        model(input_ids=ids, memory=memory, return_logits=False)
    return _rounded(found)


@contextmanager
def _calls_of_strength(model: Any, found: list[Tensor]) -> Iterator[None]:
    """Append the mean strength of each layer to `found` when it writes."""
    memories = model.memory_tokens
    layers: list[Any] = list(memories.layers) if isinstance(memories, AssociativeTokens) else []

    def keep(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        found.append(out.float().sigmoid().mean())

    handles = [layer.strength.register_forward_hook(keep) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rounded(values: list[Tensor]) -> list[float]:
    """Return the numbers with few digits; NaN and infinity become -1, which JSON can hold."""
    if not values:
        return []
    numbers = torch.nan_to_num(torch.stack(values).double(), nan=-1.0, posinf=-1.0).tolist()
    return [float(f"{number:.{DIGITS}g}") for number in numbers]
