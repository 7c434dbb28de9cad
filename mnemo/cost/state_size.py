"""The memory plan of a model, and the bytes of state that every layer keeps of a row of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from mnemo.memory import AnyMemory
from mnemo.memory.state import State, leaves, nbytes
from mnemo.model import Model, ModelConfig, stage_layers


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    layer: int
    """From 1."""
    memory: str
    """The mechanism."""
    length: int
    """Slots of memory."""
    slots: int
    """Keys that it adds to a segment's own; more than its length if it has compressed slots as well."""
    long: bool


@dataclass(frozen=True, kw_only=True)
class MemoryKind:
    """Layers with equal memories."""

    memory: str
    """The mechanism."""
    layers: tuple[int, ...]
    """From 1."""
    settings: dict[str, Any]
    """Its configuration."""
    tensors: dict[str, tuple[int, ...]]
    """Shapes of a layer's state for one row, by name; several equal tensors have their number first."""
    together: bool
    """Whether the layers share one state."""
    state_bytes: int
    """Bytes of all these layers for one row, without counters."""


@dataclass(frozen=True, kw_only=True)
class TokensPlan:
    read: int
    """Memory tokens before a segment."""
    written: int
    """Memory tokens after it."""
    state_bytes: int
    """Bytes of one row."""


def layer_plans(config: ModelConfig, lengths: Sequence[int], slots: Sequence[int]) -> tuple[LayerPlan, ...]:
    long = set(config.memory.long_layers(config.num_layers))
    memories = config.memory.memories(config.num_layers)
    return tuple(
        LayerPlan(
            layer=index + 1,
            memory=type(memory).__name__,
            length=lengths[index],
            slots=slots[index],
            long=index in long,
        )
        for index, memory in enumerate(memories)
    )


def tokens_plan(model: Model, state: State) -> TokensPlan | None:
    tokens = model.config.tokens
    if tokens is None:
        return None
    return TokensPlan(read=tokens.num_read, written=tokens.num_written, state_bytes=float_bytes(state.memory))


def memory_kinds(model: Model, state: State) -> tuple[MemoryKind, ...]:
    """The states of all layers; layers with equal memories share an entry."""
    config, kinds = model.config, {}
    memories = config.memory.memories(config.num_layers)
    groups = stage_layers(config.memory, config.num_layers)
    for group, kept in zip(groups, model.layer_states(state), strict=True):
        memory, tensors = memories[group[0]], _tensors(kept)
        layers, size = kinds.get((memory, *tensors.items()), ((), 0))
        kinds[memory, *tensors.items()] = (*layers, *(index + 1 for index in group)), size + float_bytes(kept)
    return tuple(
        MemoryKind(
            memory=type(memory).__name__,
            layers=layers,
            settings=_settings(memory),
            tensors=dict(tensors),
            together=memory.traits.grouped,
            state_bytes=size,
        )
        for (memory, *tensors), (layers, size) in kinds.items()
    )


def _tensors(kept: State) -> dict[str, tuple[int, ...]]:
    """Shapes of a stage's state for one row, by name; equal tensors of several layers are counted."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for path, leaf in leaves(kept):
        if leaf.is_floating_point() and leaf.numel():
            name = next(part for part in reversed(path.split(".")) if not part.isdigit())
            found.setdefault(name, []).append(tuple(leaf.shape[1:]))
    return {name: shapes[0] if len(shapes) == 1 else (len(shapes), *shapes[0]) for name, shapes in found.items()}


def _settings(memory: AnyMemory) -> dict[str, Any]:
    values = {field.name: getattr(memory, field.name) for field in fields(memory) if field.name != "length"}
    return {name: value for name, value in values.items() if value is not None}


def state_bytes(model: Model, lengths: Sequence[int], cached: bool = False) -> tuple[int, ...]:
    """Bytes of every layer's state for one row, without counters; a group's bytes count at its first layer."""
    config = model.config
    groups = stage_layers(config.memory, config.num_layers)
    state = model.layer_states(model.init(1, lengths, cached=cached))
    by_layer = [0] * config.num_layers
    for group, memory in zip(groups, state, strict=True):
        by_layer[group[0]] = float_bytes(memory)
    return tuple(by_layer)


def float_bytes(tree: State) -> int:
    """Bytes of the floating-point tensors; counters are left out."""
    return nbytes(tuple(leaf for _, leaf in leaves(tree) if leaf.is_floating_point()))
