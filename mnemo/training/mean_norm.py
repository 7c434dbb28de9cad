"""A limit on the gradient norm relative to its own running mean, computed on the device without waiting for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mnemo.recipes.recipe import OptimizerConfig

MEMORY_OF_NORM = 0.99
"""Weight of earlier steps in the mean norm."""


class MeanNorm:
    """Scales gradients down to `factor` times the running mean of their norm.

    `mean` is part of a checkpoint, and 0 before the first step. Norms enter it after the limit, so that a few large
    ones hardly raise it, and lasting growth raises it by at most `factor` in about a hundred steps.
    """

    def __init__(self, factor: float, device: torch.device) -> None:
        self.factor = factor
        self.mean = torch.zeros((), device=device)

    @staticmethod
    def of(config: OptimizerConfig, device: torch.device) -> MeanNorm | None:
        return None if config.clip_mean is None else MeanNorm(config.clip_mean, device)

    @torch.no_grad()
    def limit(self, parameters: Iterable[nn.Parameter], norm: Tensor, limit: float | None) -> None:
        """Scale the gradients, whose norm is given, and take the norm into the mean; `limit`: a fixed one as well."""
        norm = norm.to(self.mean.dtype)
        own = torch.where(self.mean > 0, self.factor * self.mean, norm)
        allowed = own if limit is None else own.clamp(max=limit)
        factor = (allowed / (norm + 1e-6)).clamp(max=1.0)
        grads = [own_piece(parameter.grad) for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(grads, factor)  # pyright: ignore[reportPrivateImportUsage]
        seen = torch.minimum(norm, own)
        after = torch.where(self.mean > 0, MEMORY_OF_NORM * self.mean + (1 - MEMORY_OF_NORM) * seen, seen)
        self.mean.copy_(torch.where(norm.isfinite(), after, self.mean))


def own_piece(tensor: Tensor) -> Tensor:
    """This process's piece of a divided tensor (FSDP)."""
    return tensor if type(tensor) is Tensor else tensor.to_local()  # type: ignore[attr-defined]
