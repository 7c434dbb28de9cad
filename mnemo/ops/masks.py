"""Which keys a query may see, as small frozen values.

Query i of a call stands at key index `offset + i`; distance(i, j) = offset + i - j.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Causal:
    """Keys at distance 0 and more, and less than `window` where one is given."""

    window: int | None = None

    def visible(self, distance: Tensor) -> Tensor:
        """Boolean of the shape of `distance` (L, K)."""
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)


Mask = Causal


def distances(num_queries: int, num_keys: int, offset: int, device: torch.device | None = None) -> Tensor:
    """distance(i, j) = offset + i - j, (L, K)."""
    queries = torch.arange(num_queries, device=device) + offset
    return queries[:, None] - torch.arange(num_keys, device=device)[None, :]
