"""All projections of a layer's rows after a memory in one operator: their gradients are added up inside of products.

Queries, keys, values and gates come from the same rows. As separate operations, each would write a gradient of these
rows, and another pass would add them up.

Shapes: B batch, M memory rows, L segment rows, D width, W projected, H gates.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mnemo.ops.projection import rows_gradient


@torch.library.custom_op("mnemo::project_joined", mutates_args=())
def project_joined(
    joined: Tensor, x: Tensor, key_value: Tensor, query: Tensor, gate: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values of rows (B, M + L, D), queries and gates of x (B, L, D), which are the last L of them.

    Weights: key_value (2W, D), query (W, D), gate (H, D); without it, gates are empty. `joined` is constant: the
    gradient of its last rows is that of x.
    """
    keys, values = (F.linear(joined, half) for half in key_value.chunk(2))
    return keys, values, F.linear(x, query), x.new_empty(0) if gate is None else F.linear(x, gate)


@project_joined.register_fake
def _(joined, x, key_value, query, gate):
    batch, num_rows, _ = joined.shape
    keys, values = (x.new_empty(batch, num_rows, len(key_value) // 2) for _ in range(2))
    queries = x.new_empty(*x.shape[:2], len(query))
    return keys, values, queries, x.new_empty(0) if gate is None else x.new_empty(*x.shape[:2], len(gate))


@torch.library.custom_op("mnemo::project_joined_backward", mutates_args=())
def project_joined_backward(
    by_keys: Tensor,
    by_values: Tensor,
    by_queries: Tensor,
    by_gates: Tensor | None,
    joined: Tensor,
    x: Tensor,
    key_value: Tensor,
    query: Tensor,
    gate: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, key_value, query and gate; the last is empty without one."""
    by_x, by_key_value = rows_gradient(by_keys, by_values, joined, x.shape[1], key_value)
    flat, total = x.flatten(0, 1), by_x.view(-1, x.shape[2])
    by_queries = by_queries.flatten(0, 1)
    total.addmm_(by_queries, query)
    by_query, by_gate = by_queries.t() @ flat, x.new_empty(0)
    if gate is not None and by_gates is not None:
        by_gates = by_gates.flatten(0, 1)
        total.addmm_(by_gates, gate)
        by_gate = by_gates.t() @ flat
    return by_x, by_key_value, by_query, by_gate


@project_joined_backward.register_fake
def _(by_keys, by_values, by_queries, by_gates, joined, x, key_value, query, gate):
    by_gate = x.new_empty(0 if gate is None or by_gates is None else gate.shape)
    return x.new_empty(x.shape), torch.empty_like(key_value), torch.empty_like(query), by_gate


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(
    ctx: Any, by_keys: Tensor, by_values: Tensor, by_queries: Tensor, by_gates: Tensor
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: checkpoints of activations allow no second time
    gate = saved[-1]
    found = project_joined_backward(by_keys, by_values, by_queries, None if gate is None else by_gates, *saved)
    by_x, by_key_value, by_query, by_gate = found
    return None, by_x, by_key_value, by_query, None if gate is None else by_gate


project_joined.register_autograd(_backward, setup_context=_save)
