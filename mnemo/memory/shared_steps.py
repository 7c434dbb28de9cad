"""Open segments whose rows are at different places, so that texts at any places can share each decoding step.

The contents of every row end at the same column: memory first, then the open tokens, right-aligned. A new token of each
row is then written to one column for all rows, and every row attends to the same number of columns, of which its own
number is valid. Rows are copied between such a batch and the open segments of single texts tensor by tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from mnemo.memory.protocol import OpenSegment
from mnemo.memory.state import State, leaves


class RowTensor(NamedTuple):
    """A tensor of an open segment, batch first."""

    tensor: Tensor
    time: int | None = None
    """Dimension of its columns; None if it has none"""
    slots: int = 0
    """Columns of the memory, before those of the open tokens"""
    counts_memory: bool = False
    """(B,): valid keys of the memory, which attention adds to the number of open tokens"""


class SharesSteps(ABC):
    """An open segment of which rows can be copied, and which can be placed at any column of its buffers."""

    @abstractmethod
    def row_tensors(self) -> Iterator[RowTensor]:
        """Everything that differs between rows, in an order that is always the same. No tensor occurs twice."""

    @abstractmethod
    def window(self, begin: int) -> OpenSegment:
        """The same open segment, whose buffers begin at column `begin`; it shares all tensors."""


def plain_tensors(state: State) -> Iterator[RowTensor]:
    """The tensors of a state, as tensors without columns."""
    return (RowTensor(leaf) for _, leaf in leaves(state))


class RowPlace(NamedTuple):
    """A row, and where its contents are in tensors with columns."""

    row: int
    begin: int = 0
    """Column of its first memory slot, or of its first open token in tensors without slots"""
    more: int = 0
    """Difference between the number in `counts_memory` and the valid slots"""


def copy_row(
    source: Iterable[RowTensor], at: RowPlace, target: Iterable[RowTensor], to: RowPlace, num_open: int
) -> None:
    """Copy a row with `num_open` open tokens. Other columns of the target become 0: they may not be finite."""
    for mine, theirs in zip(source, target, strict=True):
        old, new = mine.tensor[at.row], theirs.tensor[to.row]
        if mine.time is None:
            new.copy_(old - at.more + to.more if mine.counts_memory else old)
            continue
        dim, width = mine.time - 1, mine.slots + num_open
        kept = old.narrow(dim, at.begin, width).clone()  # source and target may be the same row
        new.zero_().narrow(dim, to.begin, width).copy_(kept)
