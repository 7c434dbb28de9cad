"""Memory tokens that do no harm before they are trained: they start as the last tokens of the segment before.

The memory after a segment is a mixture, channel by channel, of the write block's outputs and of the embeddings of the
segment's last m tokens:

    memory = tail + gate * (written - tail)

The gate is learned and starts at 0, where segments overlap by m tokens; at 1 the memory is that of RMT. The read block
of the first segment, which follows nothing, is hidden from the tokens. Before training, the first segment is therefore
read as by the backbone, and the others with a little more context.
Shapes: B rows, L tokens, m memory tokens, D width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.memory import MemoryTokens, RecurrentMemory, TokensState
from mnemo.ops import Blocks, Causal


class OverlapMemory(nn.Module):
    """Has the interface of `RecurrentMemory`, and the gate."""

    def __init__(self, config: MemoryTokens, dim: int) -> None:
        super().__init__()
        self.tokens = RecurrentMemory(config, dim)
        self.gate = nn.Parameter(torch.zeros(dim))

    @property
    def initial(self) -> nn.Parameter:
        return self.tokens.initial

    def init(self, batch: int) -> TokensState:
        return self.tokens.init(batch)

    def rows(self, state: TokensState) -> Tensor:
        return self.tokens.rows(state)

    def row_mask(self, lengths: Tensor, begun: int = 0) -> Causal | Blocks:
        return self.tokens.row_mask(lengths, begun)

    def forward(
        self, embeddings: Tensor, state: TokensState, backbone: Any, lengths: Tensor | None = None
    ) -> tuple[Tensor, TokensState]:
        """Return the hidden rows of embedded tokens (B, L, D) after a state, and the next state."""
        hiding = partial(backbone, unread=state.started == 0)
        hidden, after = self.tokens(embeddings, state, hiding, lengths)
        mixed = self._mix(after.memory, self.tail(state, embeddings, lengths))
        if lengths is not None:  # rows without tokens keep their memory
            mixed = torch.where(lengths.bool()[:, None, None], mixed, state.memory)
        return hidden, after._replace(memory=mixed)

    def tail(self, state: TokensState, embeddings: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the last m rows (B, m, D) of the read block and the tokens after it."""
        rows = torch.cat([self.rows(state), embeddings], 1)
        num = self.tokens.num_read
        if lengths is None:
            return rows[:, rows.shape[1] - num :]
        index = lengths[:, None] + torch.arange(num, device=rows.device)
        return rows.gather(1, index[:, :, None].expand(-1, -1, rows.shape[2]))

    def carry(self, state: TokensState, written: Tensor, tail: Tensor) -> TokensState:
        """Return the state after a segment whose last rows are `tail`."""
        after = self.tokens.carry(state, written, None)
        return after._replace(memory=self._mix(after.memory, tail))

    def _mix(self, written: Tensor, tail: Tensor) -> Tensor:
        return torch.lerp(tail, written, self.gate.expand_as(tail))
