"""Choosing the next token from logits: temperature, top-k and top-p.

Tokens are drawn by inverting the cumulated probabilities at given uniform numbers, so the caller owns all randomness.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnemo.inference.sampling_options import Sampling


def uniform_draws(seed: int, num_rows: int, num_tokens: int) -> Tensor:
    """(num_tokens, R), uniform in [0, 1): row r from a random generator with the seed `seed + r`."""
    generators = [torch.Generator().manual_seed(seed + row) for row in range(num_rows)]
    return torch.stack([torch.rand(num_tokens, generator=g, dtype=torch.float64) for g in generators], 1)


def sample(logits: Tensor, draws: Tensor, sampling: Sampling) -> Tensor:
    """One token for each row of logits (R, V), chosen by `draws` (R,), which are uniform in [0, 1)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scores = logits.float() if logits.device.type == "mps" else logits.double()
    probabilities = torch.softmax((scores - scores.amax(-1, keepdim=True)) / sampling.temperature, -1)
    if sampling.top_k is None and sampling.top_p is None:
        return invert(probabilities, draws)
    probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
    kept = _keep_likeliest(probabilities, sampling)
    return order.gather(-1, invert(kept, draws)[:, None])[:, 0]


def _keep_likeliest(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities in descending order, with the excluded ones set to 0."""
    if sampling.top_k is not None:
        probabilities = probabilities.clone()
        probabilities[:, sampling.top_k :] = 0
    if sampling.top_p is not None:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities * (before < sampling.top_p * probabilities.sum(-1, keepdim=True))
    return probabilities


def invert(weights: Tensor, draws: Tensor) -> Tensor:
    """The first index whose cumulated weight exceeds the draw's share of the total."""
    cumulated = weights.cumsum(-1)
    share = draws.to(weights)[:, None] * cumulated[:, -1:]
    index = torch.searchsorted(cumulated, share, right=True)[:, 0]
    last = (weights > 0).cumsum(-1).argmax(-1)
    return torch.minimum(index, last)
