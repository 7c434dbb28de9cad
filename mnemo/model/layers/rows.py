"""What a layer computes row by row: dropout, norms, residual sums, activations.

`PlainRows` is the definition, in PyTorch. `FusedRows` does the same in one kernel for each sum with its norm, and for
each activation, where kernels support it: on a GPU. Their results differ by rounding and by random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.model.layers import Activation, NormKind
from mnemo.ops import keep_mask
from mnemo.ops.rows import row_obstacle

ACTIVATIONS = {
    "relu": functools.partial(F.relu, inplace=True),
    "gelu": F.gelu,
    "squared_relu": lambda x: F.relu(x, inplace=True).square(),
}
"""They may overwrite their argument: the output of a projection, whose gradient does not need it."""


class Dropout(nn.Module):
    """Ordinary or locked dropout on (..., T, D)."""

    def __init__(self, rate: float, locked: bool = False) -> None:
        super().__init__()
        self.rate, self.locked = rate, locked

    @property
    def drops(self) -> bool:
        return self.training and self.rate > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.drops:
            return x
        if not self.locked and row_obstacle(x.device, x.dtype, x.shape[-1], None, "identity") is None:
            return _hashed_dropout(x, self.rate)
        if not self.locked and x.device.type != "cpu":
            return F.dropout(x, self.rate)
        shape = (*x.shape[:-2], 1, x.shape[-1]) if self.locked else x.shape
        return x * keep_mask(shape, self.rate, x)


def _hashed_dropout(x: Tensor, rate: float) -> Tensor:
    from mnemo.ops.cuda.operator import draw_seed
    from mnemo.ops.cuda.row_operators import activation

    return activation(x, None, draw_seed(x.detach(), x.detach()), 0, rate, "identity")


class LayerNorm(nn.LayerNorm):
    """Computes in fp32 under autocast, and returns the type of its input, so that the residual stays in 16 bits."""

    kind: NormKind = "layer"

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(input.dtype)

    def unscaled(self, x: Tensor) -> Tensor:
        """The norm before its weight and bias."""
        return F.layer_norm(x, self.normalized_shape, eps=self.eps).to(x.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in the type of x."""

    kind: NormKind = "rms"
    bias = None

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps).to(x.dtype)

    def unscaled(self, x: Tensor) -> Tensor:
        """The norm before its weight."""
        return F.rms_norm(x, self.weight.shape, eps=self.eps).to(x.dtype)


Norm = LayerNorm | RMSNorm
NORMS: dict[NormKind, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


class Branch(NamedTuple):
    """What a branch adds to the residual: dropout(rows + bias)."""

    rows: Tensor
    """(..., D)"""
    bias: Tensor | None
    """(D,), if the rows do not contain it yet"""
    drop: Dropout


class RowOperations(Protocol):
    @property
    def shares_norms(self) -> bool:
        """Whether one norm for several projections is faster than a norm for each."""
        ...

    def flat(self, x: Tensor) -> Tensor:
        """Rows (B, T, D) in the shape for the operations of a layer, (B, T, D) or (B * T, D)."""
        ...

    def unflat(self, x: Tensor, shape: torch.Size) -> Tensor:
        """Rows of `flat` in their former shape."""
        ...

    def project(self, linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The projection of rows, and its bias if that is still to be added."""
        ...

    def activate(self, x: Tensor, bias: Tensor | None, kind: Activation, drop: Dropout, shape: Sequence[int]) -> Tensor:
        """dropout(activation(x + bias)) of rows (N, W), as (*shape, W)."""
        ...

    def add(self, x: Tensor, branch: Branch) -> Tensor:
        """The sum of rows x (..., D) and a branch."""
        ...

    def add_norm(self, x: Tensor, branch: Branch, norm: Norm) -> tuple[Tensor, Tensor]:
        """The sum of rows x (..., D) and a branch, and the norm of that sum."""
        ...

    def normed_sum(self, x: Tensor, branch: Branch, norm: Norm) -> Tensor:
        """The norm of the sum of rows x (..., D) and a branch."""
        ...

    def norm(self, x: Tensor, norm: Norm) -> Tensor: ...

    def unscaled(self, x: Tensor, norm: Norm) -> Tensor:
        """The norm before its weight and bias."""
        ...


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias.to(x.dtype)


class PlainRows:
    shares_norms = False

    def flat(self, x: Tensor) -> Tensor:
        return x  # locked dropout needs to know the positions

    def unflat(self, x: Tensor, shape: torch.Size) -> Tensor:
        return x

    def project(self, linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return linear(x), None

    def activate(self, x: Tensor, bias: Tensor | None, kind: Activation, drop: Dropout, shape: Sequence[int]) -> Tensor:
        x = ACTIVATIONS[kind](_plus(x, bias))
        return drop(x.view(*shape, x.shape[-1]))

    def add(self, x: Tensor, branch: Branch) -> Tensor:
        return x + branch.drop(_plus(branch.rows, branch.bias))

    def add_norm(self, x: Tensor, branch: Branch, norm: Norm) -> tuple[Tensor, Tensor]:
        total = self.add(x, branch)
        return total, norm(total)

    def normed_sum(self, x: Tensor, branch: Branch, norm: Norm) -> Tensor:
        return self.add_norm(x, branch, norm)[1]

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return norm(x)

    def unscaled(self, x: Tensor, norm: Norm) -> Tensor:
        return norm.unscaled(x)


class FusedRows:
    """`seed` (1,): of the dropout of this call; each use of it has its own number, `site`."""

    shares_norms = True

    def __init__(self, seed: Tensor | None = None) -> None:
        self.seed, self.site = seed, 0

    def flat(self, x: Tensor) -> Tensor:
        # So torch's compiler can add gradients of a product and of a residual inside of the product.
        return x.flatten(0, -2)

    def unflat(self, x: Tensor, shape: torch.Size) -> Tensor:
        return x.view(shape)

    def project(self, linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return F.linear(x, linear.weight), linear.bias

    def activate(self, x: Tensor, bias: Tensor | None, kind: Activation, drop: Dropout, shape: Sequence[int]) -> Tensor:
        from mnemo.ops.cuda.row_operators import activation

        return activation(x, bias, *self._dropout(drop), kind).view(*shape, x.shape[-1])

    def _dropout(self, drop: Dropout) -> tuple[Tensor | None, int, float]:
        """Seed, site and rate of a dropout inside of a kernel."""
        if not drop.drops:
            return None, 0, 0.0
        self.site += 1
        return self.seed, self.site, drop.rate

    def _add_norm(
        self, x: Tensor, branch: Branch, tables: tuple[Tensor | None, Tensor | None], kind: str, eps: float, keep: bool
    ) -> tuple[Tensor, Tensor]:
        from mnemo.ops.cuda.row_operators import add_norm

        rows, bias, drop = branch
        dtype = torch.promote_types(x.dtype, rows.dtype)
        seeded = self._dropout(drop)
        total, normed, _, _ = add_norm(x.to(dtype), rows.to(dtype), bias, *tables, *seeded, kind, eps, keep)
        return total, normed

    def add(self, x: Tensor, branch: Branch) -> Tensor:
        return self._add_norm(x, branch, (None, None), "none", 0.0, True)[0]

    def add_norm(self, x: Tensor, branch: Branch, norm: Norm) -> tuple[Tensor, Tensor]:
        return self._add_norm(x, branch, (norm.weight, norm.bias), norm.kind, norm.eps, True)

    def normed_sum(self, x: Tensor, branch: Branch, norm: Norm) -> Tensor:
        # The backward pass needs the sum too.
        return self._add_norm(x, branch, (norm.weight, norm.bias), norm.kind, norm.eps, keep=torch.is_grad_enabled())[1]

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return self._norm(x, norm.weight, norm.bias, norm)

    def unscaled(self, x: Tensor, norm: Norm) -> Tensor:
        return self._norm(x, None, None, norm)

    def _norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> Tensor:
        from mnemo.ops.cuda.row_operators import add_norm

        return add_norm(x, None, None, weight, bias, None, 0, 0.0, norm.kind, norm.eps, False)[1]


PLAIN = PlainRows()


def row_operations(x: Tensor, norm: NormKind, activation: Activation | None) -> RowOperations:
    """The fastest operations for rows x (..., D) without dropout."""
    refused = row_obstacle(x.device, x.dtype, x.shape[-1], norm, activation)
    return FusedRows() if refused is None else PLAIN


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x) of rows (..., D), in a kernel where that is faster; `norm` may be the identity."""
    if not isinstance(norm, (LayerNorm, RMSNorm)):
        return norm(x)
    return row_operations(x, norm.kind, None).norm(x, norm)


def dropping_operations(
    x: Tensor, other: Tensor, norm: NormKind, activation: Activation, drops: Sequence[Dropout]
) -> RowOperations:
    """The fastest operations for rows x (..., D) and the dropouts of one call, which x and `other` distinguish."""
    dropping = [drop for drop in drops if drop.drops]
    if any(drop.locked for drop in dropping):
        return PLAIN  # one mask for all positions has no kernel
    found = row_operations(x, norm, activation)
    if isinstance(found, PlainRows) or not dropping:
        return found
    from mnemo.ops.cuda.operator import draw_seed

    return FusedRows(draw_seed(x.detach(), other.detach()))
