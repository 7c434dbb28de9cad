"""Memory of an update's activations, and the FLOPs that recomputing them takes.

Activations are the numbers of a forward pass that its backward pass needs, without attention scores: of every layer
about (5 D + 2 W + 2 F) q + 2 W (m + q) numbers in the type that is computed in (letters as in `mnemo.cost.flops`); with
`recompute`, D q of every layer and the inside of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mnemo.cost.flops import Flops, training_step
from mnemo.model import Model
from mnemo.recipes.recipe import TrainConfig


class Activations(NamedTuple):
    """Approximate bytes that an update keeps for its backward pass."""

    all: int
    """Without recomputation."""
    layers: int
    """With --train.recompute layer."""
    segments: int
    """With --train.bptt-memory replay: one segment of the window; the same as `all` without a window."""
    layers_work: float
    """FLOPs of an update that recomputes layers, relative to one that recomputes nothing."""
    segments_work: float
    """FLOPs of an update that recomputes segments, relative to one that recomputes nothing."""


def activations(
    model: Model, lengths: Sequence[int], forward: Flops, train: TrainConfig, *, segment: int, batch: int
) -> Activations:
    """Activations of an update; the module's documentation gives the formula."""
    config, rows = model.config, model.num_rows(segment)
    width = config.num_heads * config.head_dim
    size = {"fp64": 8, "fp32": 4}.get(train.precision, 2) * batch
    attending = config.memory.attending(config.num_layers)
    slots = model.memory_lengths(model.init(1, lengths))
    inside = [
        size * (rows * (5 * config.dim + 2 * width + 2 * config.inner_dim) + 2 * width * (slots[index] + rows))
        for index in attending
    ]
    inputs = size * rows * config.dim * config.num_layers
    window = 1 + train.bptt
    plain = replace(train, recompute="none", bptt_memory="plain")
    work = training_step(forward, plain)
    return Activations(
        all=window * sum(inside),
        layers=window * inputs + max(inside, default=0),
        segments=sum(inside),
        layers_work=training_step(forward, replace(plain, recompute="layer")) / work,
        segments_work=training_step(forward, replace(plain, bptt_memory="replay")) / work,
    )
