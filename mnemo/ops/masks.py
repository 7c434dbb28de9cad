"""Masks: which keys a query may see, as small frozen values.

Query i of a call is at the position of key `offset + i`; distance(i, j) = offset + i - j.

Shapes: B batch, L queries, K keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

Ahead = Literal["signed", "zero", "wrap"]
"""The position term of a key ahead of its query: that of its negative distance; none; or the one that the published
shift trick leaves there, which is the next query's term for a far distance."""


def distances(num_queries: int, num_keys: int, offset: int, device: torch.device | None = None) -> Tensor:
    """distance(i, j) = offset + i - j, (L, K)."""
    queries = torch.arange(num_queries, device=device) + offset
    return queries[:, None] - torch.arange(num_keys, device=device)[None, :]


class Mask(Protocol):
    @property
    def ahead(self) -> Ahead:
        """The position term of visible keys ahead."""
        ...

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        """Boolean (L, K), or (B, L, K) if rows differ."""
        ...

    def span(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The visible keys [first, last) of every query, (L,) or (B, L) each: masks have no gaps."""
        ...


@dataclass(frozen=True)
class Causal:
    """Keys at distance 0 and more, and less than `window` if one is given."""

    window: int | None = None
    reach: ClassVar[int] = 0
    """Largest number of positions between a row and a later row that it sees"""

    def within(self, window: int) -> Causal:
        """The same mask with an attention window."""
        return Causal(window)

    @property
    def ahead(self) -> Ahead:
        return "signed"

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        distance = distances(num_queries, num_keys, offset, device)
        seen = distance >= 0
        return seen if self.window is None else seen & (distance < self.window)

    def span(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> tuple[Tensor, Tensor]:
        last = torch.arange(1, num_queries + 1, device=device) + offset
        first = torch.zeros_like(last) if self.window is None else (last - self.window).clamp(min=0)
        return first, last.clamp(max=num_keys)


@dataclass(frozen=True, eq=False)
class KeyLimit:
    """Causal, and row b sees only its first limits[b] keys."""

    limits: Tensor

    @property
    def ahead(self) -> Ahead:
        return "signed"

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        causal = distances(num_queries, num_keys, offset, device) >= 0
        return causal & (torch.arange(num_keys, device=device) < self.limits[:, None, None])

    def span(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> tuple[Tensor, Tensor]:
        _, causal = Causal().span(num_queries, num_keys, offset, device)
        last = torch.minimum(causal, self.limits[:, None])
        return torch.zeros_like(last), last


@dataclass(frozen=True, eq=False)
class Blocks:
    """Memory tokens around a segment: rows [read, tokens, write, padding] after cached keys.

    Tokens see the cache, the read block and earlier tokens; the read block sees itself; the write block sees the read
    block, all tokens and itself. Padding sees only itself, so that no row is empty.
    """

    read: int
    write: int
    lengths: Tensor
    """(B,) tokens of each row; the write block follows the last one"""
    memory_sees_cache: bool = False
    ahead: Ahead = "signed"
    begun: int = 0
    """Rows of the segment that earlier calls have processed; the queries follow them"""

    @property
    def reach(self) -> int:
        """Largest number of positions between a row and a later row that it sees."""
        return max(self.read, self.write) - 1

    def within(self, window: int) -> Blocks:
        """The same mask: blocks have no attention window."""
        return self

    def visible(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
        rows = torch.arange(num_queries, device=device) + self.begun
        columns = torch.arange(num_keys, device=device) - offset + self.begun  # negative in the cache
        read, token, write = self._kinds(rows)
        read_key, token_key, write_key = self._kinds(columns)
        distance = rows[:, None] - columns[None, :]

        def pairs(queries: Tensor, keys: Tensor) -> Tensor:
            return queries[:, :, None] & keys[:, None, :]

        sees_cache = (read | token | write) if self.memory_sees_cache else token
        return (
            pairs(sees_cache, (columns < 0)[None])
            | pairs(read | token | write, read_key)
            | (pairs(token, token_key) & (distance >= 0))
            | pairs(write, token_key | write_key)
            | (distance == 0)
        )

    def span(self, num_queries: int, num_keys: int, offset: int, device: torch.device) -> tuple[Tensor, Tensor]:
        rows = torch.arange(num_queries, device=device) + self.begun
        read, token, write = self._kinds(rows)
        origin = offset - self.begun  # the key of the segment's first row
        alone = (rows + origin).expand(len(self.lengths), -1)
        of_memory = 0 if self.memory_sees_cache else origin
        first = torch.where(token, 0, torch.where(read | write, of_memory, alone))
        of_write = origin + self.read + self.lengths[:, None] + self.write
        last = torch.where(read, origin + self.read, torch.where(write, of_write, alone + 1))
        return first, last.clamp(max=num_keys)

    def _kinds(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether rows of the segment (N,) belong to the read block, the tokens and the write block, (B, N) each."""
        begin_write = self.read + self.lengths[:, None]
        read = ((index >= 0) & (index < self.read)).expand(len(self.lengths), -1)
        token = (index >= self.read) & (index < begin_write)
        write = (index >= begin_write) & (index < begin_write + self.write)
        return read, token, write

    def row_keys(self, num_queries: int, valid: int | Tensor) -> Tensor:
        """(B,): the number of keys at the end of the segment, without padding, if there are `valid` after this call."""
        return valid - self.begun - num_queries + self.read + self.lengths + self.write


def as_text(visible: Tensor) -> str:
    """A mask (L, K) as lines of text: # for visible keys."""
    return "\n".join("".join("#" if seen else "." for seen in row) for row in visible.tolist())
