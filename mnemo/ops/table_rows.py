"""Rows of a table, with a gradient that is the same in every run.

Compiled code adds up the gradients of a row in a random order of threads. PyTorch's kernel sorts first, but in 2.11
it adds up in a random order, too, if few rows occur many times, as bytes do; its deterministic algorithm does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.deterministic
from torch import Tensor


def table_rows(ids: Tensor, table: Tensor) -> Tensor:
    """table[ids]."""
    return _Rows.apply(ids, table) if torch.is_grad_enabled() else F.embedding(ids, table)  # type: ignore[return-value]


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.num_rows = table.shape[0]
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        return None, add_up_rows(gradient, ids, ctx.num_rows)


@torch.library.custom_op("mnemo::add_up_rows", mutates_args=())
def add_up_rows(gradient: Tensor, ids: Tensor, num_rows: int) -> Tensor:
    with _deterministic() if gradient.is_cuda else nullcontext():
        return torch.ops.aten.embedding_dense_backward(gradient.contiguous(), ids, num_rows, -1, False)


@add_up_rows.register_fake
def _(gradient: Tensor, ids: Tensor, num_rows: int) -> Tensor:
    return gradient.new_empty(num_rows, gradient.shape[-1])


@contextmanager
def _deterministic() -> Iterator[None]:
    """PyTorch's deterministic algorithms, without filling new memory first.

    Other threads may run operations that have none: those must not fail.
    """
    settings: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = fills
