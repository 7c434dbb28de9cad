"""Memory tokens that do no harm before they are trained: segments overlap, and the memory is added with a small gate.

Writing is that of RMT: the outputs of the write block are the memory. The read block of the next segment holds the
embeddings of the m tokens before it (the tail), to which the memory is added at the scale of embeddings:

    read = tail + gate * std * written / rms(written)

The gate has a value for each channel and starts at 0.1. A gate of 0 would pass no gradient to the write block, and
training would not start. The read block of the first segment, which follows nothing, is hidden from the tokens. Before
training, the first segment is therefore read as by the backbone, and the others with m tokens more.
Shapes: B rows, L tokens, m memory tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnemo.memory import MemoryTokens, RecurrentMemory, TokensState
from mnemo.memory.state import State
from mnemo.ops import Blocks, Causal

FIRST_GATE = 0.1


class OverlapMemory(nn.Module):
    """Has the interface of `RecurrentMemory`; the memory of a state is [written, tail], (B, 2 m, D)."""

    def __init__(self, config: MemoryTokens, dim: int) -> None:
        super().__init__()
        self.tokens = RecurrentMemory(config, dim)
        self.gate = nn.Parameter(torch.full((dim,), FIRST_GATE))

    @property
    def initial(self) -> nn.Parameter:
        return self.tokens.initial

    def init(self, batch: int, inner: State = None) -> TokensState:
        empty = self.tokens.init(batch, inner)
        return empty._replace(memory=torch.cat([empty.memory, empty.memory], 1))

    def rows(self, state: TokensState) -> Tensor:
        """Return the write block (B, m, D)."""
        return self.tokens.rows(self._written(state))

    def read_rows(self, state: TokensState) -> Tensor:
        """Return the read block (B, m, D)."""
        written, tail = state.memory.chunk(2, 1)
        size = written.float().pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6).to(written)
        return tail + self.gate * self.tokens.config.std * written / size

    def row_mask(self, lengths: Tensor, begun: int = 0) -> Causal | Blocks:
        return self.tokens.row_mask(lengths, begun)

    def forward(
        self, embeddings: Tensor, state: TokensState, backbone: Any, lengths: Tensor | None = None
    ) -> tuple[Tensor, TokensState]:
        """Return the hidden rows of embedded tokens (B, L, D) after a state, and the next state."""

        def run(rows: Tensor, inner: State, /, *, mask: Any, positions: Tensor, lengths: Tensor | None) -> Any:
            rows = torch.cat([self.read_rows(state), rows[:, self.tokens.num_read :]], 1)
            unread = state.started == 0
            return backbone(rows, inner, mask=mask, positions=positions, lengths=lengths, unread=unread)

        hidden, after = self.tokens(embeddings, self._written(state), run, lengths)
        tail = self.tail_after(state.memory.chunk(2, 1)[1], embeddings, lengths)
        return hidden, after._replace(memory=torch.cat([after.memory, tail], 1))

    def tail_after(self, tail: Tensor, embeddings: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the last m rows (B, m, D) of a tail and the tokens after it; `lengths` (B,): tokens of each row."""
        rows, num = torch.cat([tail, embeddings], 1), self.tokens.num_read
        if lengths is None:
            return rows[:, rows.shape[1] - num :]
        index = lengths[:, None] + torch.arange(num, device=rows.device)
        return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2]))

    def carry(self, state: TokensState, written: Tensor, tail: Tensor, inner: State) -> TokensState:
        """Return the state after a segment whose last rows are `tail`."""
        after = self.tokens.carry(self._written(state), written, inner)
        return after._replace(memory=torch.cat([after.memory, tail], 1))

    def _written(self, state: TokensState) -> TokensState:
        return state._replace(memory=state.memory.chunk(2, 1)[0])
