"""Recurrent networks as baselines: LSTM (Hochreiter & Schmidhuber, 1997) and QRNN (Bradbury et al., 2017).

Their layers have no attention and no residuals, as in AWD-LSTM and AWD-QRNN (Merity et al., 2018): rows in, rows out,
and a state of fixed size that depends on the whole past. They have neither memory slots nor a memory length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mnemo.memory.configuration import Layerless, Traits

if TYPE_CHECKING:
    from torch import nn

    from mnemo.memory.protocol import Stage


@dataclass(frozen=True, kw_only=True)
class _Recurrent(Layerless):
    width: int | None = None
    """Cells of each layer; the model width if left out. Another number is projected to the model width."""

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 1:
            raise ValueError(f"{self.width} cells")

    def check(self, model: Any) -> None:
        positions = type(model.positions).__name__
        if not model.memory.attending(model.num_layers) and not model.positions.none:
            raise ValueError(f"no layer attends, so {positions} positions would have no effect: use NoPositions")
        if model.tokens is not None and model.tokens.blocks:
            raise ValueError('recurrent layers read rows in order, so memory tokens need mask="causal"')
        if model.tokens is not None and model.tokens.carry_read:
            raise ValueError("recurrent layers cannot read memory tokens twice, as carry_read does: use write=True")


@dataclass(frozen=True, kw_only=True)
class LSTM(_Recurrent):
    """LSTM layers in place of attention: a baseline."""

    traits: ClassVar[Traits] = Traits(
        compile_obstacle="LSTM layers run in fused kernels", single_precision=True, besides="LSTM state"
    )

    def build(self, dim: int, drop: nn.Module) -> Stage:
        from mnemo.memory.recurrent.modules import LSTMCells, RecurrentStage

        return RecurrentStage(LSTMCells(dim, self.width or dim), dim, drop)


@dataclass(frozen=True, kw_only=True)
class QRNN(_Recurrent):
    """QRNN layers in place of attention: a baseline (Bradbury et al., 2017)."""

    traits: ClassVar[Traits] = Traits(besides="QRNN state")
    kernel: int = 2
    """Inputs that the gates of a token depend on; the last is the token's."""
    zoneout: float = 0.0
    """Probability in training that a cell keeps its value at a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel < 1:
            raise ValueError(f"kernel {self.kernel} must be positive")
        if not 0 <= self.zoneout < 1:
            raise ValueError(f"zoneout {self.zoneout} is not in [0, 1)")

    def build(self, dim: int, drop: nn.Module) -> Stage:
        from mnemo.memory.recurrent.modules import QRNNCells, RecurrentStage

        return RecurrentStage(QRNNCells(dim, self.width or dim, self.kernel, self.zoneout), dim, drop)
