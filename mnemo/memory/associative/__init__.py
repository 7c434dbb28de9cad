"""Associative memory of every layer (Rodkin et al., 2024: Associative Recurrent Memory Transformer, ARMT).

Every layer has a matrix A and a vector z. Before a layer, each row x reads A by a query; after it, the rows y of the
memory tokens at the end of the segment write to A by keys, with the delta rule:

    phi(v)  = DPFP features of v, see `modules.features`
    x      += A^T phi(W_q x) / (z . phi(W_q x))
    old     = A^T phi(k) / (z . phi(k)),  k = W_k y
    A      += sum of  sigmoid(W_b y) phi(k) (W_v y - old)^T
    z      += sum of  gamma phi(k),       gamma = 1 - z . phi(k) / |phi(k)|^2, within [0, 1]

gamma, the correction of the normaliser, is 0 for keys that z contains already: z would otherwise grow with every
rewriting of an association. All memory tokens of a segment read A and z before any of them writes. W_v starts at zero,
so that a new memory changes nothing. A and z carry gradient from segment to segment, as memory tokens do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mnemo.memory.configuration import Traits

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage

Gate = Literal["head", "channel"]


@dataclass(frozen=True, kw_only=True)
class Associative:
    """A matrix in each layer that memory tokens write and all tokens read (ARMT)."""

    traits: ClassVar[Traits] = Traits(carries_gradient=True, besides="an associative matrix")
    length: int = 0
    """Slots of Transformer-XL memory beside the matrix. They hold rows of memory tokens too: the previous segment needs
    as many slots as it has tokens and memory tokens."""
    key_dim: int = 64
    """Width of keys and queries before their features."""
    nu: int = 3
    """Shifts of the DPFP features: a key of width w has 2 * nu * w of them."""
    heads: int = 1
    """Independent matrices, each for its share of keys and values."""
    normaliser: bool = True
    """Divide what is read by the sum of the keys that were written; without it there is no vector z."""
    correction: bool = True
    """Add to the normaliser only the part of a key that it does not contain yet."""
    unit_keys: bool = True
    """Scale the features of keys and queries to length one, as the published code does since August 2024; the paper
    does not."""
    gate: Gate = "head"
    """Strength of writing: one number for each memory token and head, or one for each channel of its values."""
    bounded: bool = False
    """Keep the matrix from growing exponentially in long texts, as the published one can: rows that write are scaled
    to a fixed size, since they contain what they read; and memory tokens with similar keys together replace a value at
    most once, where each would correct the whole error. Set it before training."""
    row_size: float = 1.0
    """Root mean square to which `bounded` scales rows. Memory learns slowly if it is far below that of the model's
    rows."""

    def __post_init__(self) -> None:
        if self.row_size <= 0:
            raise ValueError(f"row_size = {self.row_size} must be positive")
        for name in ("key_dim", "nu", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")
        if self.length < 0:
            raise ValueError(f"memory length {self.length} is negative")
        if self.key_dim % self.heads:
            raise ValueError(f"{self.heads} heads do not divide keys of width {self.key_dim}")

    def check(self, model: Any) -> None:
        """Refuse models without memory tokens that write, and widths that the heads do not divide."""
        if model.tokens is None or not model.tokens.num_written:
            raise ValueError(
                "an associative memory is written by memory tokens after each segment: use WriteTokens as the tokens "
                "of the model, or MemoryTokens with write=True"
            )
        self.check_width(model.dim)

    def check_width(self, dim: int) -> None:
        """Raise ValueError if the heads do not divide rows of this width."""
        if dim % self.heads:
            raise ValueError(f"{self.heads} heads of the associative memory do not divide the width {dim}")

    def published(self) -> Associative:
        return self

    @property
    def num_features(self) -> int:
        """Features of a key, in all heads together."""
        return 2 * self.nu * self.key_dim

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        from mnemo.memory.associative.stage import AssociativeStage

        (layer,) = layers
        return AssociativeStage(self, layer)
