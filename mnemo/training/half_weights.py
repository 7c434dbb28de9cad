"""Copies of matrices in half precision, made once for a whole update.

Under autocast, every product casts its weight, and the backward pass casts the gradient of the weight back: two small
kernels for each matrix, in each segment. Here all matrices are cast in a few launches before the update, and all
gradients after it. A product and its gradient see the same numbers; only the sum over several uses of a matrix within
one segment is rounded to half precision, where a compiled graph adds up single precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import (
    Tensor,
    _foreach_add_,  # type: ignore[attr-defined]
    _foreach_copy_,  # type: ignore[attr-defined]
    nn,
)

from mnemo.model import Model
from mnemo.model.layers.modules import TransformerLayer
from mnemo.model.positions.modules import RelativePositions
from mnemo.training.compiled_loss import copy_modules

HALF_BYTES = 2
MOST_SEGMENTS = 4
"""Of an update, whatever its gradients take: each segment has its own, so that they are added in single precision"""
MOST_BYTES = 2**28
"""Of the gradients of an update that has more segments"""


def may_keep_gradients(maps: Sequence[nn.Linear], num_segments: int) -> bool:
    """Whether the gradients of so many segments can be kept until the end of an update."""
    if num_segments <= MOST_SEGMENTS:
        return True
    bytes_of_one = HALF_BYTES * sum(each.weight.numel() for each in maps)
    return num_segments * bytes_of_one <= MOST_BYTES


def product_maps(model: Model) -> list[nn.Linear]:
    """The linear maps whose weights enter products as they are, and nothing else."""
    found: list[nn.Linear] = []
    for module in model.modules():
        if isinstance(module, TransformerLayer):
            found += module.product_maps()
        elif isinstance(module, RelativePositions):
            found += module.projections or []  # type: ignore[arg-type]
    return found


class HalfWeights:
    """`model` is a copy of a model that computes with matrices in half precision, and shares all other weights.

    In an update, `refresh` comes first, then `begin_segment` before each segment, and after the backward pass
    `add_gradients` or `only_gradients`.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        maps = product_maps(model)
        self._weights = [each.weight for each in maps]
        self._values = [torch.empty_like(weight, dtype=dtype) for weight in self._weights]
        self._segments: list[list[nn.Parameter]] = []
        copies: dict[nn.Module, nn.Module] = {}
        self.model = copy_modules(model, copies)
        self._own = [copies[each] for each in maps]
        for each in self._own:
            each._parameters = dict(each._parameters)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the present weights."""
        self._segments.clear()
        _foreach_copy_(self._values, self._weights)

    def begin_segment(self) -> None:
        leaves = [nn.Parameter(values) for values in self._values]
        for own, leaf in zip(self._own, leaves, strict=True):
            own._parameters["weight"] = leaf
        self._segments.append(leaves)

    def only_gradients(self) -> dict[Tensor, Tensor] | None:
        """The gradients of all weights that have one, in half precision; None if there are several segments."""
        if len(self._segments) != 1:
            return None
        pairs = zip(self._weights, self._segments.pop(), strict=True)
        return {weight: leaf.grad for weight, leaf in pairs if leaf.grad is not None}

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the gradients of all segments to those of the weights, the last segment first, as autograd does."""
        for leaves in reversed(self._segments):
            pairs = zip(self._weights, leaves, strict=True)
            found = {weight: leaf.grad for weight, leaf in pairs if leaf.grad is not None}
            wide = {weight: torch.empty_like(weight) for weight in found}
            if found:
                _foreach_copy_(list(wide.values()), list(found.values()))
            _add(wide)
        self._segments.clear()


def _add(gradients: dict[Tensor, Tensor]) -> None:
    pairs = [(weight.grad, gradients[weight]) for weight in gradients if weight.grad is not None]
    for weight in gradients:
        weight.grad = gradients[weight] if weight.grad is None else weight.grad
    if pairs:
        _foreach_add_([held for held, _ in pairs], [new for _, new in pairs])
