"""State and modules of memory tokens; see the package for what they are.

Shapes: B batch, L tokens, m memory tokens, Q rows [read m, tokens L, write m], D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mnemo.memory.memory_tokens import MemoryTokens, WriteTokens
from mnemo.memory.protocol import Backbone, DrawsOwnWeights
from mnemo.memory.state import State
from mnemo.ops import Blocks, Causal, as_text


def row_mask(config: MemoryTokens | WriteTokens, lengths: Tensor, begun: int = 0) -> Causal | Blocks:
    """The mask of rows [read, tokens, write] with `lengths` (B,) tokens, of which `begun` were processed before."""
    if isinstance(config, WriteTokens) or not config.blocks:
        return Causal()
    return Blocks(
        config.num_read, config.num_written, lengths, config.memory_sees_cache, ahead=config.ahead, begun=begun
    )


def pattern(config: MemoryTokens, num_tokens: int, cached: int) -> Tensor:
    """As `MemoryTokens.pattern`."""
    rows = config.num_read + num_tokens + config.num_written
    mask, cpu = row_mask(config, torch.tensor([num_tokens])), torch.device("cpu")
    return mask.visible(rows, cached + rows, cached, cpu).view(rows, cached + rows)


def describe(config: MemoryTokens, num_tokens: int, cached: int) -> str:
    """As `MemoryTokens.describe`."""
    parts = {"cache": cached, "read": config.num_read, "token": num_tokens, "write": config.num_written}
    cuts = torch.tensor([*parts.values()]).cumsum(0).tolist()
    names = [name for name, count in parts.items() for _ in range(count) if name != "cache"]
    heading = " ".join(name[0] * count for name, count in parts.items() if count)
    lines = as_text(pattern(config, num_tokens, cached)).split("\n")
    spaced = [" ".join(filter(None, _cut(line, cuts))) for line in lines]
    return "\n".join(f"{name:<5}  {line}" for name, line in zip(["", *names], [heading, *spaced], strict=True))


def _cut(line: str, cuts: list[int]) -> list[str]:
    return [line[begin:end] for begin, end in zip([0, *cuts], cuts, strict=False)]


class TokensState(NamedTuple):
    memory: Tensor
    """(B, m, D): the memory of the next segment. The only leaf that carries gradient from segment to segment"""
    started: Tensor
    """(B,) 1 if a memory has been written, 0 if the next segment reads the learned rows"""
    inner: State
    """The backbone's state"""


def with_memory_of(state: State, other: State) -> State:
    """A state, or several of them, with the memory tokens of others."""
    if isinstance(state, TokensState):
        return state._replace(memory=other.memory, started=other.started)
    return tuple(with_memory_of(*parts) for parts in zip(state, other, strict=True))


class RecurrentMemory(nn.Module, DrawsOwnWeights):
    """The learned rows, and the reading and writing of memory tokens around a backbone."""

    def __init__(self, config: MemoryTokens | WriteTokens, dim: int) -> None:
        super().__init__()
        self.config = config
        self.initial = nn.Parameter(torch.empty(config.num, dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.initial.normal_(0.0, self.config.std)
        if self.config.identical_init and self.config.num:
            self.initial.copy_(self.initial[:1].expand_as(self.initial).clone())

    @property
    def num_read(self) -> int:
        return self.config.num_read

    @property
    def num_written(self) -> int:
        return self.config.num_written

    @property
    def reach(self) -> int:
        return self.config.reach

    def inner(self, state: TokensState) -> State:
        return state.inner

    def own(self, state: TokensState) -> TokensState:
        return state._replace(inner=None)

    def with_inner(self, state: TokensState, inner: State) -> TokensState:
        return state._replace(inner=inner)

    def init(self, batch: int, inner: State = None) -> TokensState:
        """A state without memory: the first segment reads the learned rows."""
        num_carried = self.config.num if self.config.carries else 0
        memory = self.initial.detach().new_zeros(batch, num_carried, self.initial.shape[1])
        return TokensState(memory, torch.zeros(batch, dtype=torch.int64, device=memory.device), inner)

    def forward(
        self, embeddings: Tensor, state: TokensState, backbone: Backbone, lengths: Tensor | None = None
    ) -> tuple[Tensor, TokensState]:
        """Hidden rows of embedded tokens (B, L, D) after a state, and the next state.

        The memory is not detached; `mnemo.memory.state.detach` cuts the gradient from later segments.
        """
        batch, length = embeddings.shape[:2]
        layout = _Layout(self.num_read, self.num_written, length, lengths)
        rows = layout.pack(self.rows(state), embeddings)
        counts = torch.full((batch,), length, device=rows.device) if lengths is None else lengths
        used = None if lengths is None else torch.where(lengths > 0, lengths + self.num_read + self.num_written, 0)
        hidden, inner = backbone(
            rows,
            state.inner,
            mask=self.row_mask(counts),
            positions=torch.arange(rows.shape[1], device=rows.device),
            lengths=used,
        )
        tokens, memory = layout.unpack(hidden)
        return tokens, self.carry(state, memory, inner, None if lengths is None else lengths > 0)

    def row_mask(self, lengths: Tensor, begun: int = 0) -> Causal | Blocks:
        return row_mask(self.config, lengths, begun)

    def rows(self, state: TokensState) -> Tensor:
        """(B, m, D): the memory of rows that have one, the learned rows for the others."""
        initial = self.initial.expand(len(state.started), -1, -1)
        if not self.config.carries:
            return initial
        return torch.where(state.started.bool()[:, None, None], state.memory, initial)

    def carry(self, state: TokensState, memory: Tensor, inner: State, rows: Tensor | None = None) -> TokensState:
        """The state after a segment; `rows` (B,) are true for rows that had tokens in it."""
        if not self.config.carries:
            return state._replace(inner=inner)
        memory = memory.to(state.memory.dtype)
        if rows is None:
            return TokensState(memory.contiguous(), torch.ones_like(state.started), inner)
        memory = torch.where(rows[:, None, None], memory, state.memory)
        return TokensState(memory, state.started | rows.long(), inner)


@dataclass(frozen=True)
class _Layout:
    """Rows [read, tokens, write, padding]: the write block follows each row's last valid token."""

    num_read: int
    num_written: int
    length: int
    lengths: Tensor | None

    def pack(self, memory: Tensor, tokens: Tensor) -> Tensor:
        rows = torch.cat([memory[:, : self.num_read], tokens, memory[:, : self.num_written]], 1)
        if self.lengths is None or not self.num_written:
            return rows
        index = torch.arange(rows.shape[1], device=rows.device)
        begin = self.num_read + self.lengths[:, None]
        written = (index >= begin) & (index < begin + self.num_written)
        # Padding moves to the right of the write block.
        source = torch.where(index < begin, index, index - self.num_written)
        source = torch.where(written, index - begin + self.num_read + self.length, source)
        return _take(rows, source)

    def unpack(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden rows of the tokens (B, L, D), and of the block that may become the next memory (B, m, D)."""
        first, num, length = self.num_read, self.num_written, self.length
        if not num:
            return hidden[:, first:], hidden[:, :first]
        if self.lengths is None:
            return hidden[:, first : first + length], hidden[:, first + length :]
        index, begin = torch.arange(length, device=hidden.device), self.lengths[:, None]
        tokens = _take(hidden, first + index + num * (index >= begin))
        return tokens, _take(hidden, first + begin + torch.arange(num, device=hidden.device))


def _take(rows: Tensor, index: Tensor) -> Tensor:
    """(B, T, D), (B, N) -> (B, N, D)."""
    return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2]))


class WithMemoryTokens(nn.Module):
    """Memory tokens around any other backbone: `hidden, state = model(embeddings, state)`."""

    def __init__(self, config: MemoryTokens, backbone: Callable[..., tuple[Tensor, Any]], dim: int) -> None:
        super().__init__()
        check_backbone(backbone)
        self.memory_tokens = RecurrentMemory(config, dim)
        self.backbone = backbone

    def forward(
        self, embeddings: Tensor, state: TokensState | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, TokensState]:
        state = self.memory_tokens.init(len(embeddings)) if state is None else state
        return self.memory_tokens(embeddings, state, self.backbone, lengths)


def check_backbone(backbone: Callable[..., Any]) -> None:
    """Raise ValueError if a callable does not take embeddings, a state, a mask, positions and lengths."""
    call = backbone.forward if isinstance(backbone, nn.Module) else backbone
    try:
        inspect.signature(call).bind("embeddings", "state", mask=None, positions=None, lengths=None)
    except TypeError as error:
        raise ValueError(
            "memory tokens need a backbone(embeddings, state, *, mask, positions, lengths) that takes embeddings: "
            f"{error}"
        ) from None
