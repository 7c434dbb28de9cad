"""The transformer layer: attention with relative positions, feed-forward, norms, dropout.

Shapes: B batch, T rows, L queries, K keys, D model width, H heads, d head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.memory.protocol import Scope
from mnemo.model.layers import Activation, DropoutConfig, NormKind
from mnemo.ops import keep_mask, relative_attention, relative_attention_reference
from mnemo.ops.projection import project_after
from mnemo.ops.rotary import rotate

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

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if not self.locked and x.device.type != "cpu":
            return F.dropout(x, self.rate)
        shape = (*x.shape[:-2], 1, x.shape[-1]) if self.locked else x.shape
        return x * keep_mask(shape, self.rate, x)


class LayerNorm(nn.LayerNorm):
    """Computes in fp32 under autocast, and returns the type of its input, so that the residual stays in 16 bits."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(input.dtype)

    def unscaled(self, x: Tensor) -> Tensor:
        """The norm before its weight and bias."""
        return F.layer_norm(x, self.normalized_shape, eps=self.eps).to(x.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in the type of x."""

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


NORMS: dict[NormKind, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


def add_norm(x: Tensor, branch: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The residual sum of rows x (..., D) and the output of a branch, and the norm of that sum."""
    total = x + branch
    return total, norm(total)


AddNorm = Callable[[Tensor, Tensor, nn.Module], tuple[Tensor, Tensor]]
"""As `add_norm`."""


def with_constant_weights(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) with a gradient for x and none for weights."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return torch.func.functional_call(module, weights, (x,))


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

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H * d) -> (B, H, T, d)."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def queries(self, x: Tensor) -> Tensor:
        return self.norm_query(self.split(self.drop_qkv(self.query(x))))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.drop_qkv(self.key_value(x)).chunk(2, -1)
        return self.norm_key(self.split(keys)), self.split(values)

    def keys_values_after(
        self, memory: Tensor, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of constant rows (B, M, D) and of rows x after them, times `scale` (D,) plus `shift` (D,)."""
        weight = self.key_value.weight
        pair = project_after(memory, x, weight if scale is None else weight * scale)
        if shift is not None:
            moved = zip(pair, (weight @ shift).to(pair[0].dtype).chunk(2), strict=True)
            pair = tuple(part + by for part, by in moved)
        keys, values = (self.split(self.drop_qkv(part)) for part in pair)
        return self.norm_key(keys), values

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scope: Scope) -> tuple[Tensor, Tensor | None]:
        """q (B, H, L, d), k and v (B, H, K, d) -> contexts (B, L, H * d), log-sum-exp (B, H, L)."""
        offset = k.shape[2] - q.shape[2] if scope.offset is None else scope.offset
        r, u, w, bias, rotary, ahead = scope.relation.to(q.dtype)
        if rotary is not None:
            end = offset + q.shape[2]
            q = rotate(q, (rotary[0][offset:end], rotary[1][offset:end]))
            k = k if scope.keys_rotated else rotate(k, rotary)
        see = {"bias": bias, "offset": offset, "ahead": ahead, "mask": scope.mask, "lengths": scope.lengths}
        rate = self.rate if self.training else 0.0
        if scope.record is not None:
            attended = relative_attention_reference(q, k, v, r, u, w, **see, dropout=rate)
            scope.record.append(attended)
            out, lse = attended.out, attended.lse
        else:
            out, lse = relative_attention(q, k, v, r, u, w, **see, dropout=rate, with_lse=scope.with_lse)
        return out.transpose(1, 2).flatten(2), lse


class HeadGate(nn.Module):
    """A factor between 0 and 1 for the context of each head, from the row of the query (Qiu et al., 2025)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_heads, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """x (B, L, D), context (B, L, H * d)."""
        gate = torch.sigmoid(self.linear(x))
        return (context.unflatten(-1, (gate.shape[-1], -1)) * gate[..., None]).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner_dim: int, activation: Activation, dropout: DropoutConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, inner_dim)
        self.outer = nn.Linear(inner_dim, dim)
        self.activation = ACTIVATIONS[activation]
        self.drop_inner = Dropout(dropout.inner, dropout.locked)
        self.drop_outer = Dropout(dropout.feed_forward, dropout.locked)

    def forward(self, x: Tensor) -> Tensor:
        # As one matrix: with a batch dimension, the activation would overwrite a view, whose gradient is copied often.
        inner = self.activation(self.inner(x.flatten(0, -2)))
        return self.drop_outer(self.outer(self.drop_inner(inner.view(*x.shape[:-1], inner.shape[-1]))))


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

    def _inner(self, rows: Tensor) -> Tensor:
        return self.norm_attention(rows) if self.pre else rows

    def keys_values(self, rows: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if memory is None or memory.shape[1] == 0:
            return self.attention.keys_values(self._inner(rows))
        if not self.pre:
            return self.attention.keys_values_after(memory, rows)
        # The norm's weights are multiplied into the projection's: their gradient then needs no row of the memory.
        norm = self.norm_attention
        return self.attention.keys_values_after(norm.unscaled(memory), norm.unscaled(rows), norm.weight, norm.bias)

    def queries(self, x: Tensor) -> Tensor:
        return self.attention.queries(self._inner(x))

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, scope: Scope) -> tuple[Tensor, Tensor | None]:
        return self.attention(self.queries(x), keys, values, scope)

    def content_attention(self, x: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
        """Contexts (B, L, H * d) of x (B, L, D) over the first lengths[b] of `rows` (B, T, D), without positions;
        with gradients for x and `rows`, and none for weights."""
        attention = self.attention

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

    def finish(self, x: Tensor, context: Tensor, added: Tensor | None = None, add_norm: AddNorm = add_norm) -> Tensor:
        """The layer's output for rows x (B, T, D) and their attention contexts (B, T, H * d).

        `added` (B, T, D) joins the attention output. `add_norm`: a faster form of `layers.add_norm`.
        """
        if self.gate is not None:
            context = self.gate(self._inner(x), context)
        attended = self.attention.output(context)
        attended = self.drop(attended if added is None else attended + added)
        if self.pre:
            x, normed = add_norm(x, attended, self.norm_feed_forward)
            return x + self.feed_forward(normed)
        x = add_norm(x, attended, self.norm_attention)[1]
        return add_norm(x, self.feed_forward(x), self.norm_feed_forward)[1]
