"""Transformer-XL in the formulation of its published code, which `mnemo bench` compares with.

Time is the first dimension and heads the last, so scores are (q, k, B, H) and matrix products copy their operands into
another order. Queries, keys and values of memory and segment are projected together, again in every segment. Position
scores are shifted by padding and reshaping. n_layer + 1 memories are stored; the last one is never used. Only relative
positions, post-norm and a plain tied softmax are supported.

Shapes: q segment, m memory, k = m + q keys, B batch, D model width, H heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.model import Model, ModelConfig
from mnemo.model.positions import Relative

Memories = list[Tensor]


class Positions(NamedTuple):
    """Values that all layers share in one call."""

    r: Tensor
    """(k, 1, D) sinusoids, followed by those of negative distances if rows look ahead"""
    u: Tensor
    v: Tensor
    """(H, d)"""
    hidden: Tensor
    """(q, k, 1): True where a key is hidden from a query"""


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return losses (q, B) from logits (q * B, V)."""
    return -F.log_softmax(logits, -1).gather(1, targets.reshape(-1, 1)).view(targets.shape)


def relative_shift(x: Tensor) -> Tensor:
    """Shift row i of (q, k, B, H) left by q - 1 - i, by padding one column and reshaping."""
    padding = x.new_zeros(x.shape[0], 1, *x.shape[2:])
    padded = torch.cat([padding, x], 1).view(x.shape[1] + 1, x.shape[0], *x.shape[2:])
    return padded[1:].view_as(x)


class PublishedAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        width = config.num_heads * config.head_dim
        self.qkv = nn.Linear(config.dim, 3 * width, bias=False)
        self.position = nn.Linear(config.dim, width, bias=False)
        self.output = nn.Linear(width, config.dim, bias=False)
        self.drop = nn.Dropout(config.dropout.projection)
        self.drop_attention = nn.Dropout(config.dropout.attention)
        self.norm = nn.LayerNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, memory: Tensor, positions: Positions) -> Tensor:
        rows = torch.cat([memory, x], 0)
        num_keys, batch = rows.shape[:2]
        heads = (self.num_heads, self.head_dim)
        q, k, v = self.qkv(rows).chunk(3, -1)
        q = q[-x.shape[0] :].view(x.shape[0], batch, *heads)
        k, v = k.view(num_keys, batch, *heads), v.view(num_keys, batch, *heads)
        r = self.position(positions.r).view(-1, *heads)

        content = torch.einsum("ibnd,jbnd->ijbn", q + positions.u, k)
        position = relative_shift(torch.einsum("ibnd,jnd->ijbn", q + positions.v, r))
        scores = (content + position[:, :num_keys]).mul_(self.head_dim**-0.5)
        if positions.hidden.any().item():
            scores = scores.masked_fill(positions.hidden[..., None], float("-inf"))
        probabilities = self.drop_attention(F.softmax(scores, 1))
        context = torch.einsum("ijbn,jbnd->ibnd", probabilities, v).contiguous().view(*x.shape[:2], -1)
        return self.finish(x, context)

    def finish(self, x: Tensor, context: Tensor) -> Tensor:
        return self.norm(x + self.drop(self.output(context)))


class PublishedLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = PublishedAttention(config)
        self.inner = nn.Linear(config.dim, config.inner_dim)
        self.outer = nn.Linear(config.inner_dim, config.dim)
        self.drop_inner = nn.Dropout(config.dropout.inner)
        self.drop_outer = nn.Dropout(config.dropout.feed_forward)
        self.norm = nn.LayerNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, memory: Tensor, positions: Positions) -> Tensor:
        return self.feed_forward(self.attention(x, memory, positions))

    def feed_forward(self, x: Tensor) -> Tensor:
        y = self.drop_inner(F.relu(self.inner(x), inplace=True))
        return self.norm(x + self.drop_outer(self.outer(y)))


class PublishedModel(nn.Module):
    """`memory`: slots of all layers, or of each layer as in Rae & Razavi's extension."""

    def __init__(self, config: ModelConfig, memory: int | Sequence[int]) -> None:
        super().__init__()
        lengths = (memory,) * config.num_layers if isinstance(memory, int) else tuple(memory)
        self.config, self.lengths = config, (*lengths, lengths[-1])
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(PublishedLayer(config) for _ in range(config.num_layers))
        self.u = nn.Parameter(torch.empty(config.num_heads, config.head_dim))
        self.v = nn.Parameter(torch.empty(config.num_heads, config.head_dim))
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.frequency: Tensor
        self.register_buffer("frequency", 1 / 10000 ** (torch.arange(0.0, config.dim, 2.0) / config.dim))
        self.drop_input = nn.Dropout(config.dropout.input)
        self.drop_positions = nn.Dropout(config.dropout.positions)
        self.drop_output = nn.Dropout(config.dropout.output)

    def forward(self, tokens: Tensor, targets: Tensor, memories: Memories | None = None) -> tuple[Tensor, Memories]:
        """tokens, targets (q, B) -> losses (q, B) and the memories after this segment, each (m, B, D)."""
        logits, memories = self.read(tokens, memories)
        return token_losses(logits, targets), memories

    def read(self, tokens: Tensor, memories: Memories | None = None) -> tuple[Tensor, Memories]:
        """tokens (q, B) -> logits (q * B, V) and the memories after this segment."""
        x = self.embed(tokens)
        memories = memories or [x.new_empty(0, *x.shape[1:]) for _ in range(len(self.layers) + 1)]
        lengths = {memory.shape[0] for memory in memories[:-1]}
        positions = {length: self._positions(x.shape[0], length, x) for length in lengths}
        hiddens = [x]
        for layer, memory in zip(self.layers, memories, strict=False):
            x = layer(x, memory, positions[memory.shape[0]])
            hiddens.append(x)
        return self.logits(x), self._update(memories, hiddens)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.drop_input(self.embedding(tokens) * self.config.dim**0.5)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.drop_output(x).reshape(-1, x.shape[-1]), self.embedding.weight, self.bias)

    def zeros(self, batch: int) -> Memories:
        """Return full memories of zeros."""
        return [self.bias.new_zeros(length, batch, self.config.dim) for length in self.lengths]

    def _positions(self, num_queries: int, num_memories: int, like: Tensor) -> Positions:
        num_keys = num_queries + num_memories
        hidden = torch.triu(like.new_ones(num_queries, num_keys), diagonal=1 + num_memories)
        if self.config.same_length:
            surplus = num_keys - self.lengths[0]
            shift = num_queries - surplus if surplus > 0 else num_queries
            hidden = hidden + torch.tril(like.new_ones(num_queries, num_keys), -shift)
        distance = torch.arange(num_keys - 1, -1, -1.0, device=like.device, dtype=self.frequency.dtype)
        clamp = self.config.positions.clamp if isinstance(self.config.positions, Relative) else None
        if clamp is not None:
            distance.clamp_(max=clamp)
        return Positions(self.sinusoids(distance), self.u, self.v, hidden.bool()[:, :, None])

    def sinusoids(self, distance: Tensor) -> Tensor:
        """(k,) -> (k, 1, D)"""
        angles = torch.outer(distance, self.frequency)
        return self.drop_positions(torch.cat([angles.sin(), angles.cos()], -1)[:, None, :].to(self.bias.dtype))

    @torch.no_grad()
    def _update(self, memories: Memories, hiddens: list[Tensor]) -> Memories:
        kept = [torch.cat([memory, hidden], 0) for memory, hidden in zip(memories, hiddens, strict=True)]
        trimmed = zip(kept, self.lengths, strict=True)
        return [rows[max(0, rows.shape[0] - length) :].detach() for rows, length in trimmed]

    @staticmethod
    @torch.no_grad()
    def of(model: Model, memory: int | Sequence[int]) -> PublishedModel:
        """Return the published formulation with the weights of a model."""
        table = model.embedding.tables[0]
        with table.device:
            other = PublishedModel(model.config, memory).to(table.dtype)
        weights = {"embedding.weight": model.embedding.tables[0], "bias": model.softmax.biases[0]}
        weights |= {name: getattr(model.positions, name)[0] for name in ("u", "v")}
        for index, layer in enumerate(model.layers()):
            projection = model.positions.projections[index].weight  # type: ignore[index, union-attr]
            weights |= {f"layers.{index}.{name}": value for name, value in _layer_weights(layer, projection).items()}
        for name, parameter in other.named_parameters():
            parameter.copy_(weights[name])
        size = model.config.dim
        exponent = torch.arange(0, size, 2, dtype=torch.float64) / size
        other.frequency = (10000.0**-exponent).to(table.device, torch.promote_types(table.dtype, torch.float32))
        return other.train(model.training)


def _layer_weights(layer: nn.Module, projection: Tensor) -> dict[str, Tensor]:
    state = dict(layer.named_parameters())
    qkv = torch.cat([state["attention.query.weight"], state["attention.key_value.weight"]])
    weights = {
        "attention.qkv.weight": qkv,
        "attention.position.weight": projection,
        "attention.output.weight": state["attention.output.weight"],
    }
    pairs = {
        "attention.norm": "norm_attention",
        "norm": "norm_feed_forward",
        "inner": "feed_forward.inner",
        "outer": "feed_forward.outer",
    }
    for theirs, ours in pairs.items():
        weights |= {f"{theirs}.{part}": state[f"{ours}.{part}"] for part in ("weight", "bias")}
    return weights
