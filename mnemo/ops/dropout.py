"""Random masks. On a CPU, PyTorch draws one number of 24 bits at a time; 16 bits are enough for a dropout mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LEVELS = 2**16


def keep_mask(shape: Sequence[int], rate: float, like: Tensor) -> Tensor:
    """Factors of dropout: 0 with probability `rate`, else 1 / (1 - rate); in the type and on the device of `like`."""
    mask = like.new_empty(shape)
    if mask.device.type != "cpu" or torch.compiler.is_compiling():
        return mask.bernoulli_(1 - rate).div_(1 - rate)
    dropped = round(rate * LEVELS)
    torch.ge(_random_levels(mask.numel()).view(mask.shape), dropped - LEVELS // 2, out=mask)
    return mask.mul_(LEVELS / (LEVELS - dropped))


def _random_levels(count: int) -> Tensor:
    """Uniform int16 from a fast generator, seeded by torch's generator."""
    seed = int(torch.randint(2**63 - 1, ()))
    words = np.random.SFC64(seed).random_raw(-(-count // 4))
    return torch.from_numpy(words.view(np.int16))[:count]
