"""Look-ahead memory (LaMemo; Ji et al., 2022): memory rows attend to later positions, and are refreshed every segment.

Consecutive layers form a group. It keeps its own input rows and, for every layer, the context C of the attention over
them with the log-sum-exp of its scores. In each segment, the memory rows of each layer attend to the positions that are
new on their right, up to the segment's first token. The result is mixed with the cached context by the softmax weight
of either side, as if one softmax went over both. The refreshed rows pass through the rest of the layer like the
segment's own rows and are the memory of the layer above, with gradients; only the cached values are constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mnemo.memory.configuration import Traits

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """LaMemo's memory: slots that also attend to later tokens (Ji et al., 2022)."""

    traits: ClassVar[Traits] = Traits(grouped=True)
    length: int = 512
    """Slots of memory of the layers."""
    epsilon: float = 1e-6
    """Added to the memorising coefficient's denominator, whose larger term is scaled to 1."""
    alpha: Literal["interpolated", "detached", "zero", "one"] = "interpolated"
    """The memorising coefficient: the softmax share of the cached side; the same without gradients, which lets
    small models trained without dropout have longer memories, and is worse with dropout (docs/lamemo.md); 0, without
    interpolation; or 1, without look-ahead."""
    encoding: Literal["disentangled", "signed"] = "disentangled"
    """Positions ahead: their distance, with a separate bias; or Transformer-XL's encoding of negative distances."""
    window: Literal["previous", "current"] = "previous"
    """Number of positions that count as new: the length of the previous segment; or of the current one, as in the
    published code, which skips positions or sees them twice when the segment length changes."""
    first_bias: Literal["normal", "xavier"] = "normal"
    """First values of the bias of positions ahead: as of the other biases; or wider, as in the published code."""
    refresh_last: bool = False
    """Keep and refresh the last layer's contexts too, although nothing uses them."""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"memory length {self.length} is negative")
        if self.epsilon < 0:
            raise ValueError(f"epsilon {self.epsilon} is negative")

    @property
    def interpolates(self) -> bool:
        return self.alpha in ("interpolated", "detached")

    def published(self) -> Lookahead:
        """The same memory with the published code's quirks."""
        return replace(self, window="current", first_bias="xavier")

    def check(self, model: Any) -> None:
        if not model.positions.projected:
            raise ValueError(f"a look-ahead memory needs Relative positions, not {type(model.positions).__name__}")
        if self.length == 0:
            raise ValueError("a look-ahead memory of length 0 has nothing to refresh")
        for below, above in itertools.pairwise(model.memory.memories(model.num_layers)):
            if isinstance(below, Lookahead) and isinstance(above, Lookahead) and below != above:
                raise ValueError(
                    "neighbouring look-ahead layers form a group and must be configured alike, "
                    f"not as {below} and {above}"
                )

    def stage(self, layers: Sequence[nn.Module]) -> Stage:
        from mnemo.memory.lookahead.modules import LookaheadStage, XavierLookaheadStage

        return (XavierLookaheadStage if self.first_bias == "xavier" else LookaheadStage)(self, layers)
