"""The layers of a decoded token for few rows, in five or six kernels a layer.

Per layer: a norm and the projection to queries, keys and values; attention in parts; the parts' sum and the output
projection (in two kernels for several rows); a norm and the inner product of the feed-forward; its outer product. The
residual sum and norm after the last product are left to the next layer's first kernel.

Shapes: B rows, H heads, d head size, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mnemo.model import Output
from mnemo.model.layers import Activation
from mnemo.model.layers.modules import TransformerLayer
from mnemo.model.layers.rows import LayerNorm, RMSNorm
from mnemo.ops.cuda import decode_projection
from mnemo.ops.cuda.decode_kernels import Parts, put_together
from mnemo.ops.cuda.decode_projection import Norm, project, project_normed, project_parts

if TYPE_CHECKING:
    from mnemo.model import Model

Attend = Callable[[int, Tensor], Tensor | Parts]
"""The contexts of a layer, given by its index, for its projected queries, keys and values (B, 3 * H * d)."""


def suit(model: Model, weights: Tensor, x: Tensor) -> bool:
    """Whether the kernels support all layers of a model for rows x (B, ..., D), and nothing is cast on the way."""
    config = model.config
    width = max(config.dim, config.num_heads * config.head_dim)
    plain = not config.head_gate and not torch.is_autocast_enabled(x.device.type)
    return plain and weights.dtype == x.dtype and decode_projection.suit(x, len(x), width)


def run_layers(
    layers: Sequence[TransformerLayer],
    projections: Sequence[Tensor],
    attend: Attend,
    activation: Activation,
    x: Tensor,
) -> Tensor:
    """The last layer's rows (B, D) for embedded tokens x (B, D); `projections`: the weights of `attend`'s argument."""
    carry, branch, norm = x, None, None  # a layer's input is the norm of the sum of `carry` and `branch`
    for index, layer in enumerate(layers):
        norm = _norm(layer.norm_attention) if layer.pre else norm
        if norm is None:
            projected = project(carry, projections[index])
        else:
            carry, projected = project_normed(carry, branch, norm, projections[index], keep_sum=layer.pre)
        attended = _output(layer, attend(index, projected), len(x))
        norm = _norm(layer.norm_feed_forward if layer.pre else layer.norm_attention)
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        carry, hidden = project_normed(carry, attended, norm, inner.weight, inner.bias, activation, keep_sum=layer.pre)
        branch, norm = project(hidden, outer.weight, outer.bias), _norm(layer.norm_feed_forward)
    if branch is None:
        return carry
    return layers[-1].join(carry, branch)


def fused_logits(model: Model, hidden: Tensor) -> Tensor:
    """Logits (B, V) of hidden rows (B, D), in one kernel for few rows."""
    product = model.softmax.only_product(model.embedding)
    if product is None or not suit(model, product[0], hidden):
        return model.logits(Output(hidden[:, None], {}))[:, 0]
    return project(hidden, *product)


def _output(layer: TransformerLayer, context: Tensor | Parts, batch: int) -> Tensor:
    """The output projection (B, D) of attention."""
    weight = layer.attention.output.weight
    if isinstance(context, Tensor):
        return project(context, weight)
    if decode_projection.sums_parts(batch, layer.head_dim):
        return project_parts(context, batch, weight)
    return project(put_together(context, batch, weight.dtype), weight)


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, (LayerNorm, RMSNorm))
    return Norm(norm.weight, norm.bias, norm.eps)
