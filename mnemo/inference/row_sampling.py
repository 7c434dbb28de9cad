"""Choosing the next token of rows that have different sampling options; each row as `sample` chooses it alone.

Nothing here reads values from the device, so that a step can be recorded as a CUDA graph.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mnemo.inference.sampling import invert
from mnemo.inference.sampling_options import Sampling

ALL_TOKENS = 2**62
"""`top_k` of a row without that limit."""
ALL_SHARES = 2.0
"""`top_p` of a row without that limit."""


class RowSampling(NamedTuple):
    """Sampling options, (R,) each, in tensors that are changed in place."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor

    @staticmethod
    def greedy(rows: int, device: torch.device) -> RowSampling:
        """Options that take the likeliest token in every row."""
        exact = exact_type(device)
        return RowSampling(
            torch.zeros(rows, dtype=exact, device=device),
            torch.full((rows,), ALL_TOKENS, device=device),
            torch.full((rows,), ALL_SHARES, dtype=exact, device=device),
        )

    def first(self, rows: int) -> RowSampling:
        """The options of the first rows."""
        return RowSampling(*(part[:rows] for part in self))

    def set(self, row: int, sampling: Sampling) -> None:
        """Change the options of one row."""
        temperature, top_k, top_p = sampling
        self.temperature[row] = temperature
        self.top_k[row] = ALL_TOKENS if top_k is None else top_k
        self.top_p[row] = ALL_SHARES if top_p is None else top_p


def is_limited(sampling: Sampling) -> bool:
    """Whether the options need the tokens in the order of their probabilities."""
    return sampling.temperature > 0 and (sampling.top_k is not None or sampling.top_p is not None)


def exact_type(device: torch.device) -> torch.dtype:
    """The type in which probabilities are cumulated."""
    return torch.float32 if device.type == "mps" else torch.float64


def sample_rows(logits: Tensor, draws: Tensor, options: RowSampling, limited: bool) -> Tensor:
    """One token for each row of logits (R, V), chosen by `draws` (R,), uniform in [0, 1).

    `limited`: whether any row has top_k or top_p; sorting costs more than everything else.
    """
    scores = logits.to(options.temperature.dtype)
    divisor = torch.where(options.temperature > 0, options.temperature, 1)[:, None]
    probabilities = torch.softmax((scores - scores.amax(-1, keepdim=True)) / divisor, -1)
    chosen = invert(probabilities, draws)
    if limited:
        has_limit = (options.top_k != ALL_TOKENS) | (options.top_p != ALL_SHARES)
        chosen = torch.where(has_limit, _among_likeliest(probabilities, draws, options), chosen)
    return torch.where(options.temperature > 0, chosen, logits.argmax(-1))


def _among_likeliest(probabilities: Tensor, draws: Tensor, options: RowSampling) -> Tensor:
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    kept = ordered.masked_fill(ranks >= options.top_k[:, None], 0)
    before = kept.cumsum(-1) - kept
    kept = kept * (before < options.top_p[:, None] * kept.sum(-1, keepdim=True))
    return order.gather(-1, invert(kept, draws)[:, None])[:, 0]
