"""States and stages of recurrent layers; see the package for what they are.

Shapes: B batch, L segment, D model width, W cells, k kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from mnemo.memory.protocol import (
    Extent,
    Segment,
    Stage,
    full_precision,
    keep_newest,
    matrix_work,
    narrowed,
    widened,
)
from mnemo.memory.shared_steps import RowTensor, SharesSteps, plain_tensors
from mnemo.memory.state import select, tree_map


class LSTMState(NamedTuple):
    hidden: Tensor
    cell: Tensor
    """(B, W) each, of the last token read"""


class QRNNState(NamedTuple):
    cell: Tensor
    """(B, W) of the last token read"""
    inputs: Tensor
    """(B, k - 1, D) the last inputs, newest last"""


class LSTMCells(nn.Module):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.lstm = nn.LSTM(dim, width, batch_first=True)

    def init(self, batch: int, like: Tensor) -> LSTMState:
        return LSTMState(like.new_zeros(batch, self.width), like.new_zeros(batch, self.width))

    def forward(self, x: Tensor, state: LSTMState, lengths: Tensor | None) -> tuple[Tensor, LSTMState]:
        """Rows (B, L, W) of all inputs (B, L, D), and the state after the first lengths[b] of them."""
        weight, dtype = next(self.lstm.parameters()), state.cell.dtype
        x, state = narrowed(x.to(dtype), weight), LSTMState(*(narrowed(leaf, weight) for leaf in state))
        with full_precision(x.device):  # with bf16 autocast, PyTorch would run its recurrent kernels in fp16
            rows, (hidden, cell) = self.lstm(x, (state.hidden[None], state.cell[None]))
            after = LSTMState(hidden[0], cell[0]) if lengths is None else self._state_after(x, state, lengths)
        return rows, LSTMState(*(leaf.to(dtype) for leaf in after))

    @torch.no_grad()
    def _state_after(self, x: Tensor, state: LSTMState, lengths: Tensor) -> LSTMState:
        """A second pass up to each row's length: the fused kernels return only the cells of the last token."""
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, cell) = self.lstm(packed, (state.hidden[None], state.cell[None]))
        some = (lengths > 0)[:, None]
        return LSTMState(torch.where(some, hidden[0], state.hidden), torch.where(some, cell[0], state.cell))


class QRNNCells(nn.Module):
    """Gates from a convolution over the last k inputs; cells pooled over time by them ("fo-pooling")."""

    def __init__(self, dim: int, width: int, kernel: int, zoneout: float) -> None:
        super().__init__()
        self.dim, self.width, self.kernel, self.zoneout = dim, width, kernel, zoneout
        self.gates = nn.Linear(kernel * dim, 3 * width)

    def init(self, batch: int, like: Tensor) -> QRNNState:
        return QRNNState(like.new_zeros(batch, self.width), like.new_zeros(batch, self.kernel - 1, self.dim))

    def forward(self, x: Tensor, state: QRNNState, lengths: Tensor | None) -> tuple[Tensor, QRNNState]:
        """Rows (B, L, W) of all inputs (B, L, D), and the state after the first lengths[b] of them."""
        num_new, before = x.shape[1], self.kernel - 1
        inputs = torch.cat([state.inputs, x], 1)
        seen = torch.cat([inputs[:, i : i + num_new] for i in range(self.kernel)], -1)  # (B, L, k * D)
        # The type of the bias is that of the model, also where weights are rounded for generating on a CPU.
        gates = self.gates(narrowed(seen, self.gates.bias))
        new, forget, output = gates.to(state.cell.dtype).chunk(3, -1)
        write = self._zone(1 - forget.sigmoid())
        cells = pool(1 - write, write * new.tanh(), state.cell)  # (B, 1 + L, W)
        after = QRNNState(
            keep_newest(cells, 1, lengths, num_new, 1).squeeze(1),
            keep_newest(inputs, before, lengths, num_new, 1),
        )
        return narrowed(output.sigmoid() * cells[:, 1:], self.gates.bias), after

    def _zone(self, write: Tensor) -> Tensor:
        """Reduce writing, so that cells keep their value: at random in training, by the mean in evaluation."""
        if self.zoneout == 0:
            return write
        if not self.training:
            return write * (1 - self.zoneout)
        return write * torch.empty_like(write).bernoulli_(1 - self.zoneout)


def pool(keep: Tensor, add: Tensor, first: Tensor) -> Tensor:
    """c_0 = first (B, W) and c_t = keep_t * c_{t-1} + add_t for L rows (B, L, W), as (B, 1 + L, W).

    All rows are computed together in log2(L) rounds: after a round of `step`, a row holds the sum over its last
    2 * step rows, and `keep` the factor of the rows before them.
    """
    sums, keep = torch.cat([first[:, None], add], 1), F.pad(keep, (0, 0, 1, 0))
    step = 1
    while step < sums.shape[1]:
        sums = torch.cat([sums[:, :step], sums[:, step:] + keep[:, step:] * sums[:, :-step]], 1)
        keep = torch.cat([keep[:, :step], keep[:, step:] * keep[:, :-step]], 1)
        step *= 2
    return sums


class RecurrentStage(Stage):
    def __init__(self, cells: LSTMCells | QRNNCells, dim: int, drop: nn.Module) -> None:
        super().__init__()
        self.cells = cells
        self.project = nn.Identity() if cells.width == dim else nn.Linear(cells.width, dim, bias=False)
        self.drop = drop

    def init(
        self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False
    ) -> LSTMState | QRNNState:
        return self.cells.init(batch, widened(like))

    def forward(self, x: Tensor, state: Any, segment: Segment) -> tuple[Tensor, Any]:
        rows, after = self.cells(x, state, segment.lengths)
        return self.drop(self.project(rows)), tree_map(Tensor.detach, after)

    def extent(self, state: Any) -> Extent:
        return Extent(0)

    def resize(self, state: Any, length: int) -> Any:
        return state

    def open(self, state: Any, segment: int) -> OpenRecurrent:
        return OpenRecurrent(self, state)

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        return rows * matrix_work(self)


class OpenRecurrent(SharesSteps):
    """The states at the beginning of the open segment and after its last token."""

    def __init__(self, stage: RecurrentStage, state: Any) -> None:
        self.stage, self.committed = stage, state
        self.newest = tree_map(Tensor.clone, state)

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        x, self.newest = self.stage(x, self.newest, segment)
        return x

    def commit(self) -> None:
        self.committed = self.newest

    def state(self) -> Any:
        return tree_map(Tensor.clone, self.committed)

    def contents(self, length: int) -> Any:
        return tree_map(Tensor.clone, self.newest)

    def restore(self, contents: Any, count: int) -> None:
        if count:
            self.newest = contents

    def row_tensors(self) -> Iterator[RowTensor]:
        return plain_tensors((self.committed, self.newest))

    def window(self, begin: int) -> OpenRecurrent:
        return self

    def select(self, rows: Tensor) -> OpenRecurrent:
        rows = rows.to(self.newest.cell.device)
        other = OpenRecurrent(self.stage, select(self.committed, rows))
        other.newest = select(self.newest, rows)
        return other
