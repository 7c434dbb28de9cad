"""Number of parameters, by part of the model."""

from __future__ import annotations

from typing import NamedTuple

from mnemo.model import Model


class Parameters(NamedTuple):
    embedding: int
    """Embedding and softmax."""
    layers: int
    """Layers, with their own position weights."""
    shared: int
    """Shared by all layers: position biases, memory tokens, a last norm."""

    @property
    def total(self) -> int:
        return sum(self)


def count_parameters(model: Model) -> Parameters:
    counts = {"embedding": 0, "layers": 0, "shared": 0}
    for name, parameter in model.named_parameters():
        counts[_kind(name)] += parameter.numel()
    return Parameters(**counts)


def _kind(name: str) -> str:
    if name.startswith(("embedding.", "softmax.")):
        return "embedding"
    per_layer = ("stages.", "positions.projections", "positions.table", "positions.bias")
    return "layers" if name.startswith(per_layer) else "shared"
