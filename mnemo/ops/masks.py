"""Which keys a query may see, as small frozen values.

Query i of a call stands at key index `offset + i`; distance(i, j) = offset + i - j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Ahead = Literal["signed", "zero", "wrap"]
"""How a key ahead of its query is positioned: by its negative distance; by no position term at all; or by what the
published shift trick leaves there, which is the next query's term for a far distance."""


def distances(num_queries: int, num_keys: int, offset: int, device: torch.device | None = None) -> Tensor:
    """distance(i, j) = offset + i - j, (L, K)."""
    queries = torch.arange(num_queries, device=device) + offset
    return queries[:, None] - torch.arange(num_keys, device=device)[None, :]


class Mask(Protocol):
    @property
    def ahead(self) -> Ahead:
        """How keys ahead are positioned, where the mask lets them be seen."""
        ...

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        """Boolean (L, K), or (B, L, K) where rows differ."""
        ...


@dataclass(frozen=True)
class Causal:
    """Keys at distance 0 and more, and less than `window` where one is given."""

    window: int | None = None

    @property
    def ahead(self) -> Ahead:
        return "signed"

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        distance = distances(num_queries, num_keys, offset, device)
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)


@dataclass(frozen=True, eq=False)
class KeyLimit:
    """Causal, but row b sees only its first limits[b] keys."""

    limits: Tensor

    @property
    def ahead(self) -> Ahead:
        return "signed"

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        causal = distances(num_queries, num_keys, offset, device) >= 0
        return causal & (torch.arange(num_keys, device=device) < self.limits[:, None, None])


@dataclass(frozen=True, eq=False)
class Blocks:
    """Memory tokens around a segment: rows [read, tokens, write, padding] behind `offset` cached keys.

    Tokens see the cache, the read block and earlier tokens; the read block sees itself; the write block sees the read
    block, all tokens and itself. Padding sees only itself, so that no row is empty.
    """

    read: int
    write: int
    lengths: Tensor
    """(B,) tokens of each row; the write block follows the last one"""
    memory_sees_cache: bool = False
    ahead: Ahead = "signed"

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        index = torch.arange(num_queries, device=device)
        begin_write = self.read + self.lengths[:, None]  # (B, 1)
        is_read = (index < self.read).expand(len(self.lengths), -1)  # (B, Q)
        is_token = ~is_read & (index < begin_write)
        is_write = (index >= begin_write) & (index < begin_write + self.write)
        earlier = index[:, None] >= index[None, :]

        def pairs(rows: Tensor, columns: Tensor) -> Tensor:
            return rows[:, :, None] & columns[:, None, :]

        own = (
            pairs(is_read | is_token | is_write, is_read)
            | (pairs(is_token, is_token) & earlier)
            | pairs(is_write, is_token | is_write)
            | torch.eye(num_queries, dtype=torch.bool, device=device)
        )
        sees_cache = (is_read | is_token | is_write) if self.memory_sees_cache else is_token
        return torch.cat([sees_cache[:, :, None].expand(-1, -1, offset), own], -1)
