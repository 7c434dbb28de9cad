"""Checks that a model or a state fits into the memory of this machine, before it is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from mnemo.errors import MnemoError
from mnemo.memory.state import nbytes
from mnemo.model import ModelConfig
from mnemo.model.shapes import num_parameters, shape_model

FLOAT_BYTES = 4
COPIES_IN_TRAINING = 2
"""Weights and their gradients: the minimum for an update."""


def memory_bytes(device: torch.device) -> int | None:
    """Total bytes of the device's memory, or None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def bytes_if_too_small(device: torch.device, needed: float) -> int | None:
    """Total bytes of the device's memory if fewer than needed; None if they suffice or are unknown."""
    available = memory_bytes(device)
    return available if available is not None and needed > available else None


def require_room(needed: int, device: torch.device, what: str) -> None:
    available = bytes_if_too_small(device, needed)
    if available is not None:
        raise MnemoError(
            f"{what} needs at least {needed / 2**30:,.1f} GiB, and this machine has {available / 2**30:,.1f} GiB"
        )


def require_state_room(
    config: ModelConfig,
    device: torch.device,
    *,
    batch: int,
    segment: int,
    lengths: int | Sequence[int] | None = None,
    cached: bool = False,
) -> None:
    """Raise MnemoError if the state or the positions alone do not fit."""
    reach = max(config.memory.lengths(config.num_layers, lengths), default=0) + segment
    state = nbytes(shape_model(config).init(1, lengths, cached)) * batch
    rows = batch * segment * config.dim * FLOAT_BYTES
    positions = reach * config.dim * FLOAT_BYTES
    require_room(state + rows + positions, device, f"a state of {batch:,} rows and {reach:,} positions")


def require_training_room(config: ModelConfig, device: torch.device, *, batch: int, segment: int) -> None:
    """Raise MnemoError if weights, gradients and state alone do not fit."""
    count = num_parameters(config)
    require_room(COPIES_IN_TRAINING * FLOAT_BYTES * count, device, f"training {count:,} weights")
    require_state_room(config, device, batch=batch, segment=segment)
