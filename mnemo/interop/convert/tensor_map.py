"""A table of where another implementation's tensors are in our model, used in both directions.

It imports weights, and exports weights and gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.errors import MnemoError, unknown


@dataclass(frozen=True, kw_only=True)
class TensorLocation:
    """The location of one foreign tensor in our tensors."""

    parts: tuple[str, ...]
    """Names of our tensors, concatenated along the first dimension."""
    index: int | None = None
    """Select this entry of our first dimension."""
    reverse: bool = False
    """The foreign rows are in reverse order."""
    shape: tuple[int, ...] | None = None
    """The foreign shape, if it differs from that of the parts."""
    rows: tuple[int, int] | None = None
    """Select the rows [begin, end) of the parts."""
    transposed: bool = False
    """The foreign matrix has the input dimension first."""

    def views(self, ours: Mapping[str, Tensor]) -> list[Tensor]:
        tensors = [ours[name] for name in self.parts]
        if self.rows is not None:
            tensors = [tensor[slice(*self.rows)] for tensor in tensors]
        return tensors if self.index is None else [tensor[self.index] for tensor in tensors]

    def take(self, ours: Mapping[str, Tensor]) -> Tensor:
        """Return the foreign tensor, made from our values."""
        values = torch.cat(self.views(ours))
        values = values.flip(0) if self.reverse else values
        values = values.T.contiguous() if self.transposed else values
        return values if self.shape is None else values.view(self.shape)

    def put(self, theirs: Tensor, ours: Mapping[str, Tensor]) -> None:
        """Write the foreign tensor into our tensors."""
        views = self.views(ours)
        values = theirs.flip(0) if self.reverse else theirs
        values = values.T if self.transposed else values
        if self.shape is not None:
            values = values.reshape(views[0].shape)
        for view, rows in zip(views, values.split([len(view) for view in views]), strict=True):
            view.copy_(rows)

    def foreign_shape(self, ours: Mapping[str, Tensor]) -> tuple[int, ...]:
        if self.shape is not None:
            return self.shape
        views = self.views(ours)
        shape = (sum(len(view) for view in views), *views[0].shape[1:])
        return shape[::-1] if self.transposed else shape


TensorMap = Mapping[str, TensorLocation]


def export_tensors(tensor_map: TensorMap, ours: Mapping[str, Tensor], aliases: bool = True) -> dict[str, Tensor]:
    """Return the foreign tensors. Tied names share a tensor; without `aliases` only the first of them is returned."""
    _check_complete(tensor_map, ours)
    taken: dict[TensorLocation, Tensor] = {}
    theirs = {}
    for name, location in tensor_map.items():
        if location not in taken:
            taken[location] = location.take(ours)
        elif not aliases:
            continue
        theirs[name] = taken[location]
    return theirs


def import_tensors(
    tensor_map: TensorMap, theirs: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return our tensors, with the shapes of `like`, filled from foreign tensors.

    A tied foreign tensor may be given under any of its names, or under several names with equal values.
    """
    dtype = next(iter(theirs.values())).dtype if theirs else torch.float32
    ours = {name: torch.empty(tensor.shape, dtype=dtype) for name, tensor in like.items()}
    _check_complete(tensor_map, ours)
    given: dict[TensorLocation, str] = {}
    for name, tensor in theirs.items():
        location = tensor_map.get(name)
        if location is None:
            raise unknown("parameter", name, tensor_map)
        wanted = location.foreign_shape(ours)
        if tuple(tensor.shape) != wanted:
            raise MnemoError(f"parameter '{name}' is {list(tensor.shape)}, but its configuration says {list(wanted)}")
        first = given.setdefault(location, name)
        if first == name:
            location.put(tensor, ours)
        elif not torch.equal(tensor, theirs[first]):
            raise MnemoError(f"parameters '{first}' and '{name}' are tied but differ")
    for name, location in tensor_map.items():
        if location not in given:
            raise MnemoError(f"parameter '{name}' is missing")
    return ours


def _check_complete(tensor_map: TensorMap, ours: Mapping[str, Tensor]) -> None:
    """Raise an error if the map misses one of our tensors."""
    known = {part for location in tensor_map.values() for part in location.parts}
    for name in ours:
        if name not in known:
            raise MnemoError(f"Mnemo's tensor '{name}' has no counterpart in the other implementation")
