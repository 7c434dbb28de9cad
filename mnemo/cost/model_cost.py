"""The cost of a configuration: parameters, FLOPs per token, activations, bytes of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mnemo.cost.activations import Activations, activations
from mnemo.cost.flops import Flops, flops_per_token, training_step
from mnemo.cost.parameters import Parameters, count_parameters
from mnemo.cost.state_size import (
    LayerPlan,
    MemoryKind,
    TokensPlan,
    layer_plans,
    memory_kinds,
    state_bytes,
    tokens_plan,
)
from mnemo.errors import MnemoError, require_not_negative
from mnemo.model import ModelConfig, attention_obstacle
from mnemo.ops.cpu import eager
from mnemo.recipes.memory_words import memory_hints, memory_in_words
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.storage.weights import build_model
from mnemo.training.precision import state_dtype


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    name: str
    parameters: Parameters
    batch: int
    segment: int
    memory: int
    """Memory length of the long-range layers."""
    memory_in_words: str
    """All memory in training."""
    hints: tuple[str, ...]
    """About a memory that cannot do what its paper does."""
    training: Flops
    """Forward pass of training."""
    inference: Flops
    """Forward pass with cached keys and values."""
    training_step: float
    """FLOPs of a new token in training, forward and backward, with repeated segments."""
    activations: Activations
    plan: tuple[LayerPlan, ...]
    memories: tuple[MemoryKind, ...]
    tokens: TokensPlan | None
    state_bytes: tuple[int, ...]
    """Bytes of every layer for one row, in 32-bit numbers; layers that share a state have it at the first."""
    cached_bytes: tuple[int, ...]
    """Likewise, in the form for inference."""
    attention: str
    """The implementation of attention, and the reason for it."""

    def total_bytes(self, by_layer: Sequence[int]) -> int:
        """The sum over layers, with memory tokens."""
        return sum(by_layer) + (0 if self.tokens is None else self.tokens.state_bytes)

    def to_json(self) -> dict[str, Any]:
        layers = zip(self.plan, self.state_bytes, self.cached_bytes, strict=True)
        return {
            "name": self.name,
            "parameters": self.parameters._asdict() | {"total": self.parameters.total},
            "batch": self.batch,
            "segment": self.segment,
            "memory": self.memory,
            "memory_in_words": self.memory_in_words,
            "hints": list(self.hints),
            "forward_flops_per_token": {
                "training": self.training.to_json(),
                "cached_inference": self.inference.to_json(),
            },
            "training_step_flops_per_token": self.training_step,
            "activation_bytes": self.activations._asdict(),
            "state_bytes": self.total_bytes(self.state_bytes),
            "cached_state_bytes": self.total_bytes(self.cached_bytes),
            "memory_tokens": None if self.tokens is None else asdict(self.tokens),
            "memories": [asdict(kind) for kind in self.memories],
            "layers": [
                asdict(layer) | {"state_bytes": kept, "cached_state_bytes": cached} for layer, kept, cached in layers
            ],
            "attention": self.attention,
        }


def describe(
    name: str, recipe: Recipe, *, memory: int | None = None, segment: int | None = None, batch: int | None = None
) -> ModelCost:
    """The cost of a recipe; None: lengths and batch as in training."""
    config = recipe.model
    segment = _positive("segment", recipe.train.segment + recipe.train.context if segment is None else segment)
    batch = _positive("batch", recipe.train.batch if batch is None else batch)
    require_not_negative("memory length", memory)
    with torch.device("meta"):
        model = build_model(config, "fp32")
    lengths = config.memory.lengths(config.num_layers, memory)
    training = flops_per_token(model, lengths, segment=segment, batch=batch)
    state = model.init(1, lengths)
    return ModelCost(
        name=name,
        parameters=count_parameters(model),
        batch=batch,
        segment=segment,
        memory=config.memory.long_length(lengths),
        memory_in_words=memory_in_words(config),
        hints=tuple(memory_hints(recipe)),
        training=training,
        inference=flops_per_token(model, lengths, segment=segment, batch=batch, cached=True),
        training_step=training_step(training, recipe.train),
        activations=activations(model, lengths, training, recipe.train, segment=segment, batch=batch),
        plan=layer_plans(config, lengths, model.memory_lengths(state)),
        memories=memory_kinds(model, state),
        tokens=tokens_plan(model, state),
        state_bytes=state_bytes(model, lengths),
        cached_bytes=state_bytes(model, lengths, cached=True),
        attention=attention_path(config, recipe.train),
    )


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise MnemoError(f"{name} {value} must be positive")
    return value


def attention_path(config: ModelConfig, train: TrainConfig) -> str:
    """The implementation of attention that training uses on this machine, and the reason if it is not the fastest."""
    device = torch.device("cuda" if torch.cuda.is_available() and train.device != "cpu" else "cpu")
    refused = attention_obstacle(config, device, state_dtype(train.precision) or torch.float32)
    if refused is None:
        return f"fused kernels ({train.precision})"
    return f"plain PyTorch, queries in blocks of {eager.QUERY_BLOCK}: {refused}"
