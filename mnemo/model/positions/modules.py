"""The modules of the position encodings, each with the four methods of `Positions`.

Shapes: K keys, D model width, H heads, d head size. Tables are in descending distance: column K - 1 is distance 0.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnemo.errors import MnemoError
from mnemo.memory.protocol import Layer, Relation
from mnemo.model.layers import DropoutConfig
from mnemo.model.layers.modules import Attention, Dropout
from mnemo.model.positions import AnyPositions, Learned, NoPositions, Relative, Rotary, Shaw, Sinusoidal
from mnemo.ops.projection import compute_dtype
from mnemo.ops.rotary import rotary_angles


def sinusoids(
    num_keys: int, dim: int, clamp: int | None, dtype: torch.dtype, device: torch.device, ahead: int = 0
) -> Tensor:
    """[sin, cos] of distances K-1 ... -ahead, at most `clamp`, (K + ahead, D); computed in float64."""
    make = _sinusoids if torch.compiler.is_compiling() else _cached_sinusoids
    return make(num_keys, dim, clamp, dtype, device, ahead)


def _sinusoids(
    num_keys: int, dim: int, clamp: int | None, dtype: torch.dtype, device: torch.device, ahead: int
) -> Tensor:
    distance = torch.arange(num_keys - 1, -1 - ahead, -1, dtype=torch.float64, device=device)
    if clamp is not None:
        distance = distance.clamp(max=clamp)
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    angle = distance[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1).to(dtype)


_cached_sinusoids = functools.lru_cache(maxsize=32)(_sinusoids)


class Positions(nn.Module):
    """A position encoding as the model uses it. This one has no positions; others override some of its methods."""

    counts_from_end = False
    """Whether the position of a slot depends on the number of slots after it in the segment."""

    def at_input(self, x: Tensor, slots: Tensor, segment: int) -> Tensor:
        """Add positions to embedded tokens (B, T, D) at `slots` (T,) or (B, T) of a segment of this length."""
        return x

    def at_layer(self, layer: int, x: Tensor, slots: Tensor, segment: int) -> Tensor:
        """Add positions to the input of a layer, likewise."""
        return x

    def encoding(self, num_keys: int, ahead: int, like: Tensor) -> Any:
        """The encoding that all layers of a call share, after dropout, of distances num_keys - 1 ... -ahead."""
        return None

    def relation(self, layer: int, attention: Attention, encoding: Any, ahead: int) -> Relation:
        """The tables of one layer for the distances of the encoding."""
        return Relation()


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the model that a position module depends on."""

    num_layers: int
    """Layers that attend."""
    dim: int
    num_heads: int
    head_dim: int
    dropout: DropoutConfig


class RelativePositions(Positions):
    def __init__(self, config: Relative, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.drop = Dropout(sizes.dropout.positions, sizes.dropout.locked)
        self.projections, self.u, self.v = None, None, None
        if config.shared_projection:
            return
        width = sizes.num_heads * sizes.head_dim
        self.projections = nn.ModuleList(nn.Linear(sizes.dim, width, bias=False) for _ in range(sizes.num_layers))
        count = sizes.num_layers if config.biases_per_layer else 1
        self.u = nn.Parameter(torch.empty(count, sizes.num_heads, sizes.head_dim))
        self.v = nn.Parameter(torch.empty(count, sizes.num_heads, sizes.head_dim))

    def encoding(self, num_keys: int, ahead: int, like: Tensor) -> Tensor:
        table = sinusoids(num_keys, self.sizes.dim, self.config.clamp, like.dtype, like.device, ahead)
        return self.drop(table).to(compute_dtype(table))  # once, and not by autocast in every layer

    @property
    def drops_out(self) -> bool:
        """Whether two calls of `encoding` return different tables."""
        return self.training and self.drop.rate > 0

    def relation(self, layer: int, attention: Attention, encoding: Tensor, ahead: int) -> Relation:
        if self.projections is None or self.u is None or self.v is None:
            return self.shared(attention, encoding, ahead)
        bias = layer if self.config.biases_per_layer else 0
        r = self._heads(self.projections[layer](encoding))
        return Relation(r, self.u[bias], self.v[bias], ahead=ahead)

    def shared(self, attention: Attention, encoding: Tensor, ahead: int) -> Relation:
        width = self.sizes.num_heads * self.sizes.head_dim
        r = F.linear(encoding, attention.key_value.weight[:width])
        origin = F.linear(encoding[-1 - ahead], attention.query.weight).view(self.sizes.num_heads, self.sizes.head_dim)
        return Relation(self._heads(r), origin, origin, ahead=ahead)

    def _heads(self, r: Tensor) -> Tensor:
        """(K, H * d) -> (H, K, d), contiguous for products with queries."""
        return r.view(-1, self.sizes.num_heads, self.sizes.head_dim).transpose(0, 1).contiguous()


class ShawPositions(Positions):
    def __init__(self, config: Shaw, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.empty(sizes.num_layers, config.distances, sizes.num_heads, sizes.head_dim))
        self.bias = nn.Parameter(torch.empty(sizes.num_layers, config.distances, sizes.num_heads))
        self.u = nn.Parameter(torch.empty(sizes.num_layers, sizes.num_heads, sizes.head_dim))

    def encoding(self, num_keys: int, ahead: int, like: Tensor) -> Tensor:
        """Table rows of distances K-1 ... -ahead; the last row is distance 0 and all negative ones."""
        limit = min(self.config.distances, self.config.clamp or self.config.distances)
        distance = torch.arange(num_keys - 1, -1 - ahead, -1, device=like.device).clamp(0, limit - 1)
        return self.config.distances - 1 - distance

    def relation(self, layer: int, attention: Attention, encoding: Tensor, ahead: int) -> Relation:
        r = self.table[layer, encoding].transpose(0, 1)  # (H, K, d)
        return Relation(r, self.u[layer], None, self.bias[layer, encoding].transpose(0, 1), ahead=ahead)


class SinusoidalPositions(Positions):
    def __init__(self, config: Sinusoidal, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.dim, self.counts_from_end = config, sizes.dim, config.countdown

    def at_input(self, x: Tensor, slots: Tensor, segment: int) -> Tensor:
        table = sinusoids(segment, self.dim, self.config.clamp, x.dtype, x.device)
        return x + (table if self.config.countdown else table.flip(0))[slots]


class LearnedPositions(Positions):
    def __init__(self, config: Learned, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.counts_from_end = config, config.align_end
        self.table = nn.Parameter(torch.empty(sizes.num_layers, config.length, sizes.dim))

    def at_input(self, x: Tensor, slots: Tensor, segment: int) -> Tensor:
        if segment > self.config.length:
            raise MnemoError(f"a segment of {segment} tokens is longer than the {self.config.length} learned positions")
        return x

    def at_layer(self, layer: int, x: Tensor, slots: Tensor, segment: int) -> Tensor:
        first = self.config.length - segment if self.config.align_end else 0
        return x + self.table[layer, first + slots]


class RotaryPositions(Positions):
    def __init__(self, config: Rotary, sizes: Sizes) -> None:
        super().__init__()
        if sizes.head_dim % 2:
            raise ValueError(f"rotary positions need an even head size, not {sizes.head_dim}")
        self.config, self.head_dim = config, sizes.head_dim

    def encoding(self, num_keys: int, ahead: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return rotary_angles(num_keys, self.head_dim, self.config.base, like)

    def relation(self, layer: int, attention: Attention, encoding: tuple[Tensor, Tensor], ahead: int) -> Relation:
        return Relation(rotary=encoding, ahead=ahead)


class AbsentPositions(Positions):
    def __init__(self, config: NoPositions, sizes: Sizes) -> None:
        super().__init__()


MODULES: dict[type, type[nn.Module]] = {
    Relative: RelativePositions,
    Shaw: ShawPositions,
    Sinusoidal: SinusoidalPositions,
    Learned: LearnedPositions,
    Rotary: RotaryPositions,
    NoPositions: AbsentPositions,
}


def build(config: AnyPositions, sizes: Sizes) -> nn.Module:
    return MODULES[type(config)](config, sizes)  # type: ignore[call-arg]


@dataclass(frozen=True)
class ProjectedPositions:
    """Position tables that are projected in the call that uses them; see `mnemo.memory.protocol.PositionTables`."""

    positions: Positions
    encoding: Any
    """Of the largest number of keys and of keys ahead that any layer needs"""
    ahead: int
    """Keys ahead in the encoding"""
    mirrored_encoding: Tensor | None = None
    """The encoding of later positions with their own dropout mask; None if nothing is dropped out"""

    def relation(self, layer: Layer, num_keys: int, ahead: int = 0) -> Relation:
        near = nearest(self.encoding, num_keys, ahead, self.ahead)
        return self.positions.relation(layer.index, layer.attention, near, ahead)  # type: ignore[attr-defined]

    def mirrored(self, layer: Layer, num_keys: int) -> Relation | None:
        if self.mirrored_encoding is None:
            return None
        near = nearest(self.mirrored_encoding, num_keys, 0, 0)
        return self.positions.relation(layer.index, layer.attention, near, 0)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class StoredPositions:
    """Position tables that were projected before, for segments of at most some length: see `Model.tables`."""

    relations: tuple[Relation, ...]
    """Of every layer that attends"""
    num_later: int = 0
    """Keys that will follow the present ones; the wrapped positions of memory tokens count them"""

    def relation(self, layer: Layer, num_keys: int, ahead: int = 0) -> Relation:
        return self.relations[layer.index].nearest(num_keys + self.num_later, ahead)

    def mirrored(self, layer: Layer, num_keys: int) -> None:
        """Nothing is dropped out of stored tables."""
        return None


def nearest(encoding: Any, num_keys: int, ahead: int, have_ahead: int) -> Any:
    """An encoding for fewer keys: the near distances of tables, the first angles of rotary positions."""
    if encoding is None:
        return None
    if isinstance(encoding, tuple):
        return tuple(part[:num_keys] for part in encoding)
    end = encoding.shape[0] - have_ahead
    return encoding[end - num_keys : end + ahead]
