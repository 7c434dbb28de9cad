"""A layer with an associative memory in Mnemo's own models, and its decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from mnemo.memory.associative import Associative
from mnemo.memory.associative.modules import Associations, AssociativeMemory, keep_unread, written_rows
from mnemo.memory.kv_buffer import KeyValueCache
from mnemo.memory.protocol import Extent, Segment, Stage
from mnemo.memory.shared_steps import RowTensor, SharesSteps, plain_tensors
from mnemo.memory.state import select
from mnemo.memory.xl.modules import OpenXL, XLStage, XLState


class AssociativeState(NamedTuple):
    matrix: Tensor
    """(B, h, K, V), see `Associations`; carries gradient from segment to segment"""
    normaliser: Tensor
    """(B, h, K); carries gradient from segment to segment"""
    recent: XLState | KeyValueCache
    """The layer's last inputs, as in Transformer-XL"""

    @property
    def associations(self) -> Associations:
        return Associations(self.matrix, self.normaliser)


class AssociativeStage(Stage):
    """Rows read the matrix before the layer, and the layer's output rows of the memory tokens write it."""

    def __init__(self, config: Associative, layer: nn.Module) -> None:
        super().__init__()
        self.attending = XLStage(layer)
        self.memory = AssociativeMemory(config, self.attending.layer.dim)
        self.work_of_written = self.memory.write_work()
        self.late_weights = (
            "memory.key.weight",
            "memory.value.weight",
            "memory.strength.weight",
            "memory.strength.bias",
        )

    def init(self, batch: int, length: int, like: Tensor, cached: bool = False, full: bool = False) -> AssociativeState:
        recent = self.attending.init(batch, length, like, cached, full)
        return AssociativeState(*self.memory.init(batch, like), recent)

    def forward(self, x: Tensor, state: AssociativeState, segment: Segment) -> tuple[Tensor, AssociativeState]:
        x = x + self.memory.read(x, state.associations)
        out, recent = self.attending(x, state.recent, segment)
        rows = written_rows(out, segment.call.written, segment.lengths)
        written = self.memory.write(rows, state.associations)
        return out, AssociativeState(*keep_unread(written, state.associations, segment.lengths), recent)

    def extent(self, state: AssociativeState) -> Extent:
        return self.attending.extent(state.recent)

    def resize(self, state: AssociativeState, length: int) -> AssociativeState:
        return state._replace(recent=self.attending.resize(state.recent, length))

    def open(self, state: AssociativeState, segment: int) -> OpenAssociative:
        return OpenAssociative(self.memory, state.associations, self.attending.open(state.recent, segment))

    def work(self, rows: int, slots: int, cached: bool = False) -> float:
        return self.attending.work(rows, slots, cached) + rows * self.memory.read_work()


class OpenAssociative(SharesSteps):
    """The matrix, which is constant within a segment, and the open segment of the layer."""

    def __init__(self, memory: AssociativeMemory, associations: Associations, attending: OpenXL) -> None:
        self.memory, self.attending = memory, attending
        self.committed = self.after = associations

    def feed(self, x: Tensor, count: int, segment: Segment) -> Tensor:
        out = self.attending.feed(x + self.memory.read(x, self.committed), count, segment)
        if segment.call.written:
            self.after = self.memory.write(out, self.committed)
        return out

    def commit(self) -> None:
        self.committed = self.after
        self.attending.commit()

    def state(self) -> AssociativeState:
        matrix, normaliser = self.committed
        return AssociativeState(matrix.clone(), normaliser.clone(), self.attending.state())

    def contents(self, length: int) -> Any:
        return self.attending.contents(length)

    def restore(self, contents: Any, count: int) -> None:
        self.attending.restore(contents, count)

    def row_tensors(self) -> Iterator[RowTensor]:
        yield from plain_tensors(self.committed)
        yield from self.attending.row_tensors()

    def window(self, begin: int) -> OpenAssociative:
        return OpenAssociative(self.memory, self.committed, self.attending.window(begin))

    def select(self, rows: Tensor) -> OpenAssociative:
        chosen = select(self.committed, rows.to(self.committed.matrix.device))
        return OpenAssociative(self.memory, chosen, self.attending.select(rows))
