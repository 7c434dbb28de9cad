"""The stages of a model: its layers, divided by the plan into groups with one memory each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from mnemo.memory import Plan
from mnemo.memory.configuration import Layerless
from mnemo.memory.protocol import AuxiliaryLosses, Segment, Stage
from mnemo.model.config import ModelConfig
from mnemo.model.layers.modules import Dropout, TransformerLayer


def stage_layers(plan: Plan, num_layers: int) -> list[list[int]]:
    """Layer indices of every stage: runs of equal memories that are grouped, else one layer a stage."""
    memories = plan.memories(num_layers)
    keys = [(memory, None if memory.traits.grouped else index) for index, memory in enumerate(memories)]
    return [list(group) for _, group in groupby(range(num_layers), key=lambda index: keys[index])]


def attending_layers(plan: Plan, num_layers: int) -> list[list[int]]:
    """Indices of every stage's layers, counted among the layers that attend."""
    attending = plan.attending(num_layers)
    return [
        [attending.index(index) for index in group if index in attending] for group in stage_layers(plan, num_layers)
    ]


def build_stages(config: ModelConfig) -> list[Stage]:
    """The stages of a model, from first to last."""
    memories = config.memory.memories(config.num_layers)
    # All transformer layers are made before the stages: the order of random draws is part of a seed's meaning.
    attending = config.memory.attending(config.num_layers)
    layers = {index: _layer(config, place) for place, index in enumerate(attending)}
    lengths = [memories[index].length for index in attending]
    for index, layer in layers.items():
        layer.attention.num_calls = lengths.count(memories[index].length)
    stages: list[Stage] = []
    for group in stage_layers(config.memory, config.num_layers):
        memory = memories[group[0]]
        if isinstance(memory, Layerless):
            stages.append(memory.build(config.dim, _drop_output(config, group[-1])))
        else:
            stages.append(memory.stage([layers[index] for index in group]))
    return stages


def _drop_output(config: ModelConfig, index: int) -> Dropout:
    """The dropout after a layer without a transformer layer; after the last one, the model's `output` applies."""
    rate = 0.0 if index == config.num_layers - 1 else config.dropout.projection
    return Dropout(rate, config.dropout.locked)


def _layer(config: ModelConfig, index: int) -> TransformerLayer:
    """A transformer layer; `index` counts the layers that attend."""
    return TransformerLayer(
        index,
        dim=config.dim,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        inner_dim=config.inner_dim,
        norm=config.norm,
        norm_kind=config.norm_kind,
        norm_eps=config.norm_eps,
        qk_norm=config.qk_norm,
        head_gate=config.head_gate,
        activation=config.activation,
        dropout=config.dropout,
    )


@dataclass(frozen=True)
class RecomputedStage:
    """A stage of one layer, whose inside is computed again in the backward pass instead of being kept."""

    stage: nn.Module

    def __call__(self, x: Tensor, state: Any, segment: Segment) -> tuple[Tensor, Any]:
        x, state, losses = segment.run_layer(self._run, x, state, segment)
        for name, value in losses.items():
            segment.call.losses.add(name, value)
        return x, state

    def _run(self, x: Tensor, state: Any, segment: Segment) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """The stage with its auxiliary losses as results: those of a second run must not be added again."""
        call = replace(segment.call, losses=AuxiliaryLosses(), recompute=False)
        return *self.stage(x, state, replace(segment, call=call)), call.losses.by_name


def recomputed(stages: Iterable[nn.Module], groups: Sequence[Sequence[int]]) -> list[nn.Module | RecomputedStage]:
    """Stages that keep only the inputs of their layers; stages of several layers do so themselves."""
    return [stage if len(group) > 1 else RecomputedStage(stage) for stage, group in zip(stages, groups, strict=True)]
