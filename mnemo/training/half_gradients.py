"""Steps of optimizers from gradients that are in half precision, as the products of a backward pass write them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.profiler import record_function

from mnemo.training import half_adam, muon
from mnemo.training.muon import Muon


def takes_half_gradients(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether there are kernels for this optimizer on a device, which work."""
    if isinstance(optimizer, Muon):
        return optimizer.update_clip is None and muon.kernels_work(device)
    return half_adam.takes_half_gradients(optimizer, device)


def clipped_step(optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], limit: float | None) -> Tensor:
    """Clip all gradients and take a step; return their norm before. `gradients`: of some matrices, in half precision.

    These matrices have no other gradient.
    """
    # A profile finds the kernels of the step by this name, which torch gives to `step` only.
    with record_function(f"Optimizer.step#{type(optimizer).__name__}.clipped_step"):
        if isinstance(optimizer, Muon):
            return optimizer.clipped_step(gradients, limit)
        return half_adam.clipped_step(optimizer, gradients, limit)
