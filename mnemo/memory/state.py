"""Operations on states. A state is a tree of tuples and NamedTuples whose leaves are tensors, batch first.

No function changes its argument. The functions know no mechanism: all use the same tree map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

State = Any


def tree_map(function: Callable[[Tensor], Tensor], tree: State) -> State:
    """The same tree with `function` applied to every tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if tree is None:
        return None
    return _like(tree, [tree_map(function, item) for item in tree])


def tree_zip(function: Callable[..., Tensor], *trees: State) -> State:
    """One tree from several of the same shape: `function` is applied to the tensors at each place."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if first is None:
        return None
    return _like(first, [tree_zip(function, *parts) for parts in zip(*trees, strict=True)])


def _like(tree: State, items: list[State]) -> State:
    """A tuple of items, or a NamedTuple of the kind of `tree`."""
    return tuple(items) if type(tree) in (tuple, list) else type(tree)(*items)


def leaves(tree: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its path, such as `3.keys`."""
    if isinstance(tree, Tensor):
        yield path, tree
        return
    if tree is None:
        return
    names = getattr(tree, "_fields", range(len(tree)))
    for name, item in zip(names, tree, strict=True):
        yield from leaves(item, f"{path}.{name}" if path else str(name))


def detach(state: State) -> State:
    return tree_map(Tensor.detach, state)


def reset(state: State, rows: Tensor) -> State:
    """Empty the memory of the rows where `rows` (B,) is true."""

    def clear(leaf: Tensor) -> Tensor:
        return leaf.masked_fill(rows.view(-1, *[1] * (leaf.dim() - 1)), 0)

    return tree_map(clear, state)


def choose(rows: Tensor, yes: State, no: State) -> State:
    """The rows of one state where `rows` (B,) is true, and those of another elsewhere."""
    return tree_zip(lambda a, b: torch.where(rows.view(-1, *[1] * (a.dim() - 1)), a, b), yes, no)


def select(state: State, rows: Tensor) -> State:
    """The state of the given row indices, in that order; a row may be taken many times."""
    return tree_map(lambda leaf: leaf.index_select(0, rows), state)


def to(state: State, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> State:
    """Move to a device; `dtype` converts floating leaves only."""
    return tree_map(lambda leaf: leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None), state)


def nbytes(state: State) -> int:
    """Return the bytes of all tensors of a state."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(state))
