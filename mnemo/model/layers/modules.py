"""The transformer layer: attention with relative positions, feed-forward. Norms and dropout are in `rows.py`.

Shapes: B batch, T rows, L queries, K keys, D model width, H heads, d head size.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.memory.protocol import Scope, narrowed
from mnemo.model.layers import Activation, DropoutConfig, NormKind
from mnemo.model.layers.rows import NORMS, Branch, Dropout, RMSNorm, RowOperations, dropping_operations, row_operations
from mnemo.ops import gates_inside, relative_attention, relative_attention_reference
from mnemo.ops.heads import place_heads
from mnemo.ops.joined_projection import project_joined
from mnemo.ops.projection import MOST_MEMORY, compute_dtype, project_after
from mnemo.ops.rotary import rotate
from mnemo.ops.rows import joining_obstacle


def with_constant_weights(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) with a gradient for x and none for weights."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return torch.func.functional_call(module, weights, (x,))


Rotary = tuple[Tensor, Tensor]
"""Cosines and sines (P, d / 2) of positions."""


class Inputs(NamedTuple):
    """What enters the projections of a layer: rows * scale + shift. A scale of None means neither of the two."""

    rows: Tensor
    """(B, L, D)"""
    scale: Tensor | None = None
    shift: Tensor | None = None
    """(D,) each: weights of a norm, which are multiplied into those of a projection because that has fewer rows"""

    def project(self, linear: nn.Linear) -> Tensor:
        """By a linear layer without a bias of its own."""
        if self.scale is None:
            return linear(self.rows)
        weight = linear.weight
        return F.linear(self.rows, weight * self.scale, None if self.shift is None else weight @ self.shift)


class Projected(NamedTuple):
    """Rows (B, T, W) of keys and values of memory and segment, and (B, L, W) of the segment's queries; logits of gates
    (B, L, H), if there are any."""

    keys: Tensor
    values: Tensor
    queries: Tensor
    gate: Tensor


class Attention(nn.Module):
    """Multi-head attention. One product gives keys and values; queries and keys may be normalised, head by head."""

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, dropout: DropoutConfig, qk_norm_eps: float | None = None
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        width = num_heads * head_dim
        self.query = nn.Linear(dim, width, bias=False)
        self.key_value = nn.Linear(dim, 2 * width, bias=False)
        self.output = nn.Linear(width, dim, bias=False)
        self.norm_query = nn.Identity() if qk_norm_eps is None else RMSNorm(head_dim, qk_norm_eps)
        self.norm_key = nn.Identity() if qk_norm_eps is None else RMSNorm(head_dim, qk_norm_eps)
        self.drop_qkv = Dropout(dropout.qkv, dropout.locked)
        self.rate = dropout.attention
        self.num_calls = 1
        """Layers of the model with as long a memory, this one included"""

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H * d) -> (B, H, T, d)."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def place(self, rows: Tensor, norm: nn.Module, rotary: Rotary | None, offset: int = 0) -> Tensor:
        """(B, T, H * d) -> (B, H, T, d), normalised, and rotated by the angles of positions from `offset` on."""
        weight, eps = (norm.weight, norm.eps) if isinstance(norm, RMSNorm) else (None, 0.0)
        return place_heads(rows, self.num_heads, weight, eps, rotary, offset)

    def queries(self, x: Inputs, rotary: Rotary | None = None, offset: int = 0) -> Tensor:
        return self.place(self.drop_qkv(x.project(self.query)), self.norm_query, rotary, offset)

    def keys_values(self, x: Inputs, rotary: Rotary | None = None) -> tuple[Tensor, Tensor]:
        keys, values = self.drop_qkv(x.project(self.key_value)).chunk(2, -1)
        return self.place(keys, self.norm_key, rotary), self.split(values)

    def keys_values_after(
        self,
        memory: Tensor,
        x: Tensor,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        rotary: Rotary | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of constant rows (B, M, D) and of rows x after them, times `scale` (D,) plus `shift` (D,)."""
        weight = self.key_value.weight
        pair = project_after(memory, x, weight if scale is None else weight * scale)
        if shift is not None:
            moved = zip(pair, (weight @ shift).to(pair[0].dtype).chunk(2), strict=True)
            pair = tuple(part + by for part, by in moved)
        keys, values = (self.drop_qkv(part) for part in pair)
        return self.place(keys, self.norm_key, rotary), self.split(values)

    def applies_gates(self, q: Tensor, scope: Scope) -> bool:
        """Whether `forward` with a gate is faster than a multiplication after it."""
        relation = scope.relation
        return scope.record is None and gates_inside(q, relation.r, relation.bias, scope.mask)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scope: Scope, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """q (B, H, L, d), k and v (B, H, K, d) -> contexts (B, L, H * d), log-sum-exp (B, H, L).

        Queries and keys are rotated already, if positions are rotary. Contexts are multiplied by the sigmoid of `gate`
        (B, L, H), if there is one.
        """
        offset = k.shape[2] - q.shape[2] if scope.offset is None else scope.offset
        r, u, w, bias, _, ahead = scope.relation.to(q.dtype)
        see = {"bias": bias, "offset": offset, "ahead": ahead, "mask": scope.mask, "lengths": scope.lengths}
        rate = self.rate if self.training else 0.0
        if scope.record is not None:
            attended = relative_attention_reference(q, k, v, r, u, w, **see, dropout=rate)
            scope.record.append(attended)
            out, lse = attended.out, attended.lse
        else:
            kept = {"with_lse": scope.with_lse, "num_calls": self.num_calls, "gate": gate}
            out, lse = relative_attention(q, k, v, r, u, w, **see, dropout=rate, **kept)
        return out.transpose(1, 2).flatten(2), lse


class HeadGate(nn.Module):
    """A factor between 0 and 1 for the context of each head, from the row of the query (Qiu et al., 2025)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_heads, bias=False)

    def logits(self, x: Inputs) -> Tensor:
        """(B, L, H)"""
        return x.project(self.linear)

    def forward(self, x: Inputs, context: Tensor) -> Tensor:
        """Rows x (B, L, D), context (B, L, H * d)."""
        return self.scaled(context, self.logits(x))

    def scaled(self, context: Tensor, logits: Tensor) -> Tensor:
        gate = torch.sigmoid(logits)
        return (context.unflatten(-1, (gate.shape[-1], -1)) * gate[..., None]).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner_dim: int, activation: Activation, dropout: DropoutConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, inner_dim)
        self.outer = nn.Linear(inner_dim, dim)
        self.activation: Activation = activation
        self.drop_inner = Dropout(dropout.inner, dropout.locked)
        self.drop_outer = Dropout(dropout.feed_forward, dropout.locked)

    def forward(self, x: Tensor, rows: RowOperations) -> Branch:
        # As one matrix: with a batch dimension, the activation would overwrite a view, whose gradient is copied often.
        inner, bias = rows.project(self.inner, x.flatten(0, -2))
        inner = rows.activate(inner, bias, self.activation, self.drop_inner, x.shape[:-1])
        return Branch(*rows.project(self.outer, inner), self.drop_outer)


class TransformerLayer(nn.Module):
    """Attention and feed-forward with residuals; the norm after each sum ("post") or before each branch ("pre")."""

    def __init__(
        self,
        index: int,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        inner_dim: int,
        norm: Literal["post", "pre"],
        norm_kind: NormKind,
        norm_eps: float,
        qk_norm: bool,
        head_gate: bool,
        activation: Activation,
        dropout: DropoutConfig,
    ) -> None:
        super().__init__()
        self.index, self.pre = index, norm == "pre"
        self.dim, self.num_heads, self.head_dim = dim, num_heads, head_dim
        self.attention = Attention(dim, num_heads, head_dim, dropout, norm_eps if qk_norm else None)
        self.gate = HeadGate(dim, num_heads) if head_gate else None
        self.feed_forward = FeedForward(dim, inner_dim, activation, dropout)
        self.norm_attention = NORMS[norm_kind](dim, norm_eps)
        self.norm_feed_forward = NORMS[norm_kind](dim, norm_eps)
        self.drop = Dropout(dropout.projection, dropout.locked)

    def product_maps(self) -> list[nn.Linear]:
        """The maps whose weights enter products as they are: those before a norm may be multiplied with its weights."""
        attention, inside = self.attention, self.feed_forward
        unscaled = [] if self.pre else [attention.query, attention.key_value]
        return [*unscaled, attention.output, inside.inner, inside.outer]

    def _rows(self, x: Tensor) -> RowOperations:
        return row_operations(x, self.norm_attention.kind, self.feed_forward.activation)

    def _dropping_rows(self, x: Tensor, context: Tensor) -> RowOperations:
        inside = self.feed_forward
        drops = (self.drop, inside.drop_inner, inside.drop_outer)
        return dropping_operations(x, context, self.norm_attention.kind, inside.activation, drops)

    def _shared_norm(self, x: Tensor) -> Tensor | None:
        """The norm of rows x before its weights, once for queries, keys and gate; None where that is not faster."""
        rows = self._rows(x) if self.pre else None
        return rows.unscaled(x, self.norm_attention) if rows is not None and rows.shares_norms else None

    def _inner(self, x: Tensor, normed: Tensor | None = None) -> Inputs:
        """What enters the projections. `normed`: of `_shared_norm`."""
        if normed is not None:
            return Inputs(normed, self.norm_attention.weight, self.norm_attention.bias)
        return Inputs(self._rows(x).norm(x, self.norm_attention) if self.pre else x)

    def keys_values(
        self,
        rows: Tensor,
        memory: Tensor | None = None,
        rotary: Rotary | None = None,
        normed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if memory is None or memory.shape[1] == 0:
            # Rows may be those of a memory.
            rows = narrowed(rows, self.norm_attention.weight)
            return self.attention.keys_values(self._inner(rows, normed), rotary)
        if not self.pre:
            return self.attention.keys_values_after(memory, rows, rotary=rotary)
        # The norm's weights are multiplied into the projection's: their gradient then needs no row of the memory.
        norm, operations = self.norm_attention, self._rows(rows)
        new = operations.unscaled(rows, norm) if normed is None else normed
        past = operations.unscaled(memory, norm)
        return self.attention.keys_values_after(past, new, norm.weight, norm.bias, rotary)

    def queries(self, x: Tensor) -> Tensor:
        return self.attention.queries(self._inner(x))

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, scope: Scope) -> tuple[Tensor, Tensor | None]:
        rotary = scope.relation.to(keys.dtype).rotary
        keys = keys if rotary is None or scope.keys_rotated else rotate(keys, rotary)
        return self.attention(self._placed_queries(self._inner(x), keys, scope), keys, values, scope)

    def attend_from(self, queries: Tensor, keys: Tensor, values: Tensor, scope: Scope) -> tuple[Tensor, Tensor | None]:
        return self.attention(queries, keys, values, scope)

    def _placed_queries(self, x: Inputs, keys: Tensor, scope: Scope) -> Tensor:
        """Queries, rotated if positions are rotary."""
        offset = keys.shape[2] - x.rows.shape[1] if scope.offset is None else scope.offset
        return self.attention.queries(x, scope.relation.rotary, offset)

    def _joins(self, x: Tensor, memory: Tensor) -> bool:
        """Whether norms and projections of memory and segment are computed together, with gradients."""
        usable = self.pre and self.norm_attention.kind == "rms" and torch.is_grad_enabled()
        kept = 0 < memory.shape[1] <= MOST_MEMORY * x.shape[1]
        if not (usable and kept and compute_dtype(x) == x.dtype and self._rows(x).shares_norms):
            return False
        return joining_obstacle(x.device, x.dtype, x.shape[-1]) is None

    def _joined(self, x: Tensor, memory: Tensor) -> Projected:
        """Projections of the norms of [memory ; x], where `_joins`."""
        from mnemo.ops.cuda.join_norms import join_norms

        norm = self.norm_attention
        normed, joined, _ = join_norms(memory.detach().to(x.dtype), x, norm.eps)
        # The norm's weights are multiplied into the projection's: their gradient then needs no row of the memory.
        return self._projected(joined, normed, norm.weight)

    def _projected(self, joined: Tensor, x: Tensor, scale: Tensor | None = None) -> Projected:
        """Projections of rows x and of rows before them, which `joined` includes, times `scale` (D,)."""
        maps = (self.attention.key_value, self.attention.query, None if self.gate is None else self.gate.linear)
        weights = [None if each is None else each.weight for each in maps]
        if scale is not None:
            weights = [None if weight is None else weight * scale for weight in weights]
        narrow = [None if weight is None else weight.to(x.dtype) for weight in weights]
        return Projected(*project_joined(joined, x, *narrow))  # type: ignore[arg-type]

    def takes_joined(self, x: Tensor, memory: Tensor) -> bool:
        # Shorter memories are copied quickly. A compiled stage would be compiled again for a memory with other strides.
        if self.pre or not x.is_cuda or memory.shape[1] <= x.shape[1] or torch.compiler.is_compiling():
            return False
        return torch.is_grad_enabled() and memory.dtype == x.dtype == compute_dtype(x)

    def output_after_joined(self, x: Tensor, joined: Tensor, scope: Scope) -> Tensor:
        return self._output_of(x, self._projected(joined, x), scope)

    def _output_of(self, x: Tensor, projected: Projected, scope: Scope) -> Tensor:
        attention, rotary = self.attention, scope.relation.rotary
        keys, values, queries, gate = projected
        keys = attention.place(attention.drop_qkv(keys), attention.norm_key, rotary)
        values = attention.split(attention.drop_qkv(values))
        offset = keys.shape[2] - x.shape[1] if scope.offset is None else scope.offset
        queries = attention.place(attention.drop_qkv(queries), attention.norm_query, rotary, offset)
        inside = self.gate is not None and attention.applies_gates(queries, scope)
        context, _ = attention(queries, keys, values, scope, gate if inside else None)
        if self.gate is not None and not inside:
            context = self.gate.scaled(context, gate)
        return self.finish(x, context, gated=True)

    def output_after(self, x: Tensor, memory: Tensor, scope: Scope) -> Tensor:
        if self._joins(x, memory):
            return self._output_of(x, self._joined(x, memory), scope)
        normed = self._shared_norm(x)
        # Keys are normalised and rotated in one pass, which `keys_values` followed by `attend` cannot do.
        keys, values = self.keys_values(x, memory, scope.relation.rotary, normed)
        inner = self._inner(x, normed)
        queries = self._placed_queries(inner, keys, scope)
        inside = self.gate is not None and self.attention.applies_gates(queries, scope)
        gate = self.gate.logits(inner) if inside and self.gate is not None else None
        context, _ = self.attention(queries, keys, values, scope, gate)
        return self.finish(x, context, normed=normed, gated=inside)

    def content_attention(self, x: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
        """Contexts (B, L, H * d) of x (B, L, D) over the first lengths[b] of `rows` (B, T, D), without positions;
        with gradients for x and `rows`, and none for weights."""
        attention, rows = self.attention, narrowed(rows, self.norm_attention.weight)

        def inner(part: Tensor) -> Tensor:
            return with_constant_weights(self.norm_attention, part) if self.pre else part

        q = attention.split(F.linear(inner(x), attention.query.weight.detach()))
        k, v = F.linear(inner(rows), attention.key_value.weight.detach()).chunk(2, -1)
        q = with_constant_weights(attention.norm_query, q)
        k = with_constant_weights(attention.norm_key, attention.split(k))
        valid = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        mask = valid[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, attention.split(v), attn_mask=mask)
        return out.transpose(1, 2).flatten(2)

    def finish(
        self,
        x: Tensor,
        context: Tensor,
        added: Tensor | None = None,
        normed: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor:
        """The layer's output for rows x (B, T, D) and their attention contexts (B, T, H * d).

        `added` (B, T, D) joins the attention output. `normed`: `_shared_norm` of x. `gated`: whether the contexts have
        been multiplied by the gates.
        """
        rows = self._dropping_rows(x, context)
        if self.gate is not None and not gated:
            context = self.gate(self._inner(x, normed), context)
        attended = self.attention.output(rows.flat(context))
        branch = Branch(attended if added is None else attended + rows.flat(added), None, self.drop)
        return self._after_attention(rows.flat(x), branch, rows, x.shape)

    def _after_attention(self, x: Tensor, branch: Branch, rows: RowOperations, shape: torch.Size) -> Tensor:
        if self.pre:
            x, normed = rows.add_norm(x, branch, self.norm_feed_forward)
        else:
            x = normed = rows.normed_sum(x, branch, self.norm_attention)
        added, bias, drop = self.feed_forward(normed, rows)
        # The result must not be a view: FSDP loses its hooks if one is changed in place.
        return self._join(rows.unflat(x, shape), Branch(rows.unflat(added, shape), bias, drop), rows)

    def _join(self, x: Tensor, branch: Branch, rows: RowOperations) -> Tensor:
        return rows.add(x, branch) if self.pre else rows.normed_sum(x, branch, self.norm_feed_forward)

    def join(self, x: Tensor, branch: Tensor) -> Tensor:
        """The layer's output for residual rows x (..., D) and the output of its feed-forward, without dropout."""
        return self._join(x, Branch(branch, None, Dropout(0.0)), self._rows(x))
