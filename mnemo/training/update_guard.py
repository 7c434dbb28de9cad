"""Whether an update may change the weights: losses and gradients that are not finite, and spikes of the loss."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from mnemo.recipes.recipe import TrainConfig
from mnemo.training.divergence import Diverged
from mnemo.training.monitor import Monitor
from mnemo.training.processes import AnyWorld
from mnemo.training.run_progress import Progress

MOST_SKIPPED = 100
"""Skipped updates in a row after which the run stops."""
MEMORY_OF_LOSS = 0.98
"""Weight of earlier losses in the usual loss, which is a running mean."""


class UpdateGuard:
    """Skips updates, or stops the run, as `on_nan` and `spike` of the configuration say."""

    def __init__(self, config: TrainConfig, world: AnyWorld, monitor: Monitor) -> None:
        self.config, self.world, self.monitor = config, world, monitor

    @property
    def is_active(self) -> bool:
        """Whether any update may be skipped or refused before it is done; rollbacks find spikes after it."""
        return self.config.on_nan == "skip" or (self.config.on_nan == "stop" and self.config.spike is not None)

    @property
    def unrecordable(self) -> str | None:
        """Why updates cannot be recorded as a CUDA graph, or None."""
        return "updates may be skipped" if self.is_active else None

    def judge(self, progress: Progress, loss: Tensor, norm: Tensor) -> tuple[Progress, bool]:
        """Whether to do an update; a skipped update's batch changes neither weights nor memory."""
        (value,) = self.world.sums([float(loss)])
        problem = self._problem(progress.usual_loss, value, float(norm))
        if problem is None:
            usual = self._usual_loss(progress.usual_loss, value)
            return replace(progress, usual_loss=usual, in_a_row=0), True
        what = f"loss {value:.4g}, gradient norm {float(norm):.4g} ({problem})"
        if self.config.on_nan == "stop" or progress.in_a_row + 1 >= MOST_SKIPPED:
            raise Diverged(f"{what} at step {progress.step + 1}")
        self.monitor.note(f"step {progress.step + 1:,} is skipped: {what}")
        return replace(progress, skipped=progress.skipped + 1, in_a_row=progress.in_a_row + 1), False

    def _problem(self, usual: float | None, loss: float, norm: float) -> str | None:
        """What is wrong with an update, or None. The scaler of fp16 skips infinite gradients itself."""
        spike = self.config.spike
        if not math.isfinite(loss) or not (self.config.precision == "fp16" or math.isfinite(norm)):
            return "not finite"
        if usual is None or spike is None or loss <= spike * usual:
            return None
        return f"{loss / usual:.3g} times the usual loss of {usual:.4g}: --train.spike {spike:g}"

    def _usual_loss(self, before: float | None, loss: float) -> float:
        return loss if before is None else MEMORY_OF_LOSS * before + (1 - MEMORY_OF_LOSS) * loss
