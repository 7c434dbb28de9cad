"""Recurrent networks as baselines: LSTM (Hochreiter & Schmidhuber, 1997) and QRNN (Bradbury et al., 2017).

Their layers have no attention and no residuals, as in AWD-LSTM and AWD-QRNN (Merity et al., 2018): rows in, rows out,
and a state of fixed size that depends on the whole past. They have neither memory slots nor a memory length.

Shapes: B batch, L segment, D model width, W cells, k kernel.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from mnemo.memory.protocol import Extent, Layerless, Segment, Stage, Traits, keep_newest, matrix_work, widened
from mnemo.memory.state import select, tree_map


@dataclass(frozen=True, kw_only=True)
class _Recurrent(Layerless):
    traits: ClassVar[Traits] = Traits(besides="recurrent cells")
    width: int | None = None
    """Cells of each layer; the model width if left out. Another number is projected to the model width."""

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 1:
            raise ValueError(f"{self.width} cells")

    def check(self, model: Any) -> None:
        positions = type(model.positions).__name__
        if not model.memory.attending(model.num_layers) and not model.positions.none:
            raise ValueError(f"no layer attends, so {positions} positions would have no effect: use NoPositions")
        if model.tokens is not None and model.tokens.blocks:
            raise ValueError('recurrent layers read rows in order, so memory tokens need mask="causal"')
        if model.tokens is not None and model.tokens.carry_read:
            raise ValueError("recurrent layers cannot read memory tokens twice, as carry_read does: use write=True")


@dataclass(frozen=True, kw_only=True)
class LSTM(_Recurrent):
    traits: ClassVar[Traits] = Traits(
        compile_obstacle="LSTM layers run in fused kernels", single_precision=True, besides="recurrent cells"
    )

    def build(self, dim: int, drop: nn.Module) -> RecurrentStage:
        return RecurrentStage(LSTMCells(dim, self.width or dim), dim, drop)


@dataclass(frozen=True, kw_only=True)
class QRNN(_Recurrent):
    kernel: int = 2
    """Inputs that the gates of a token depend on; the last is the token's."""
    zoneout: float = 0.0
    """Probability in training that a cell keeps its value at a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel < 1:
            raise ValueError(f"kernel {self.kernel} must be positive")
        if not 0 <= self.zoneout < 1:
            raise ValueError(f"zoneout {self.zoneout} is not in [0, 1)")

    def build(self, dim: int, drop: nn.Module) -> RecurrentStage:
        return RecurrentStage(QRNNCells(dim, self.width or dim, self.kernel, self.zoneout), dim, drop)


class LSTMState(NamedTuple):
    hidden: Tensor
    cell: Tensor
    """(B, W) each, of the last token read"""


class QRNNState(NamedTuple):
    cell: Tensor
    """(B, W) of the last token read"""
    inputs: Tensor
    """(B, k - 1, D) the last inputs, newest last"""


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, if the device has it: with bf16, PyTorch would run its recurrent kernels in fp16."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


class LSTMCells(nn.Module):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.lstm = nn.LSTM(dim, width, batch_first=True)

    def init(self, batch: int, like: Tensor) -> LSTMState:
        return LSTMState(like.new_zeros(batch, self.width), like.new_zeros(batch, self.width))

    def forward(self, x: Tensor, state: LSTMState, lengths: Tensor | None) -> tuple[Tensor, LSTMState]:
        """Rows (B, L, W) of all inputs (B, L, D), and the state after the first lengths[b] of them."""
        x = x.to(state.cell.dtype)
        with full_precision(x.device):
            rows, (hidden, cell) = self.lstm(x, (state.hidden[None], state.cell[None]))
            after = LSTMState(hidden[0], cell[0]) if lengths is None else self._state_after(x, state, lengths)
        return rows, after

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
        new, forget, output = self.gates(seen).to(state.cell.dtype).chunk(3, -1)
        write = self._zone(1 - forget.sigmoid())
        cells = pool(1 - write, write * new.tanh(), state.cell)  # (B, 1 + L, W)
        after = QRNNState(
            keep_newest(cells, 1, lengths, num_new, 1).squeeze(1),
            keep_newest(inputs, before, lengths, num_new, 1),
        )
        return output.sigmoid() * cells[:, 1:], after

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


class OpenRecurrent:
    """The states at the beginning of the open segment and after its last token."""

    def __init__(self, stage: RecurrentStage, state: Any) -> None:
        self.stage = stage
        self.committed = self.newest = state

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

    def select(self, rows: Tensor) -> OpenRecurrent:
        rows = rows.to(self.newest.cell.device)
        other = OpenRecurrent(self.stage, select(self.committed, rows))
        other.newest = select(self.newest, rows)
        return other
