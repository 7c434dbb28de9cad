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


def hashed_levels(seed: int, site: int, num_rows: int, num_columns: int) -> Tensor:
    """Random levels (num_rows, num_columns) below `LEVELS`, as kernels on rows draw them: `kept_columns`, plainly."""
    rows = torch.arange(num_rows)[:, None]
    pairs = torch.arange(-(-num_columns // 2))[None, :]
    begin = _mixed_bits(rows ^ _mixed_bits(torch.tensor(seed + site * GOLDEN) & WORD))
    drawn = _mixed_bits((begin + pairs * GOLDEN) & WORD)
    return torch.stack([drawn % LEVELS, drawn // LEVELS], -1).flatten(1)[:, :num_columns]


GOLDEN, WORD = 0x9E3779B9, 2**32 - 1


def _mixed_bits(x: Tensor) -> Tensor:
    """`lowbias32` of Chris Wellons, for numbers of 32 bits in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & WORD
    return x ^ (x >> 16)
