"""The configuration of a memory mechanism: its protocol, and the facts that it states about the mechanism.

Configurations import no torch, so that the command line reads its arguments without loading it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage

Start = Literal["empty", "zeros"]
"""The state before a text: no memory, or a memory full of zeros that are attended to."""
Decoding = Literal["segments", "calls"]
"""What is one segment when a text is continued: a fixed number of tokens, or each input of a call, as in TransfoXL:
the prompt, then every single token."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about a mechanism that code outside of `mnemo.memory` depends on. The defaults suit most."""

    grouped: bool = False
    """Consecutive layers with equal configurations form one stage."""
    key_value_cache: bool = False
    """Each stage is one layer without further weights, and its inference state is a `KeyValueCache`: it can be decoded
    in ring buffers, scored in buffers that are not moved, and compiled layer by layer."""
    compile_obstacle: str | None = None
    """Why a model with this memory cannot be compiled as one graph; None if it can."""
    single_precision: bool = False
    """Its kernels have no half precision."""
    conditional_weights: bool = False
    """Some weights take part in some segments only, depending on the data."""
    stand_in_slots: int | None = None
    """Its work depends on the data, so that it cannot run on shapes alone. Cost estimates count a Transformer-XL memory
    of this many slots instead."""
    carries_gradient: bool = False
    """Gradient flows through its state to earlier segments; the states of other mechanisms are detached on writing."""
    besides: str = ""
    """Memory besides its slots, in words, such as `64 compressed slots`."""


class Memory(Protocol):
    """The configuration of a mechanism: a frozen dataclass."""

    @property
    def length(self) -> int:
        """Slots of memory."""
        ...

    @property
    def traits(self) -> Traits: ...

    def check(self, model: Any) -> None:
        """Raise ValueError with the reason if the mechanism does not fit a model configuration."""
        ...

    def published(self) -> Self:
        """The same memory with the quirks of the published code."""
        ...

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        """A stage of these transformer layers."""
        ...


class Layerless(ABC):
    """The configuration of a mechanism whose stages replace transformer layers, and contain none.

    They do not attend, and draw their own initial weights. Their memory has no slots: its size is the same for every
    memory length.
    """

    traits: ClassVar[Traits]

    @property
    def length(self) -> int:
        return 0

    def published(self) -> Self:
        return self

    @abstractmethod
    def check(self, model: Any) -> None:
        """As in `Memory`."""

    @abstractmethod
    def build(self, dim: int, drop: nn.Module) -> Stage:
        """A stage for a model of this width; `drop` is the dropout of its output."""
