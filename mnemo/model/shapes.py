"""Shapes of a model's weights and states, from its configuration alone."""

from __future__ import annotations

import functools

import torch

from mnemo.model import Model, ModelConfig


def shape_model(config: ModelConfig) -> Model:
    """A model on the meta device, which has shapes but no storage. Callers share it, so none may change it."""
    try:
        return _shape_model(config)
    except TypeError:  # a mechanism of one's own need not be hashable
        return _shape_model.__wrapped__(config)


@functools.lru_cache(maxsize=8)
def _shape_model(config: ModelConfig) -> Model:
    with torch.device("meta"):
        return Model(config)


def num_parameters(config: ModelConfig) -> int:
    """Number of weights."""
    return sum(parameter.numel() for parameter in shape_model(config).parameters())
