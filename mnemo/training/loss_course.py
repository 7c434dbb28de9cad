"""The course of a run's losses and gradient norms: running means, and how long they have been too high.

A `Course` is a pure function of the losses and norms of all steps so far, and part of every checkpoint. So it does not
matter when the numbers are fetched from the device: a divergence is always found at the same step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from mnemo.files.safe_load import is_count, is_finite
from mnemo.recipes.recipe import TrainConfig

FAST, SLOW = 0.9, 0.99
"""Weight of earlier steps in the running means: about the last 10 and the last 100 steps."""
SPREAD = 0.98
"""Weight of earlier steps in the mean deviation of single losses."""
LARGEST_DEVIATION = 4.0
"""A deviation counts as at most this many times the mean one, so that a divergence does not raise its own threshold."""
FIRST_DEVIATIONS = 5
"""Number of deviations that count in full."""
DEVIATIONS = 6.0
"""A rise of fewer mean deviations is noise."""
MOST_NOISE = 2.0
"""A rise of more than this many times the loss of equal probabilities is never noise: losses that grow from the first
steps on have large deviations too."""
SHARE_OF_LOWEST = 0.25
"""A rise by a smaller share of the lowest loss is no divergence, however little was learned so far."""
SUSPECT = 0.5
"""Share of a divergence's rise from which a checkpoint is no longer a good one to go back to."""
SETTLING_STEPS = 100
"""Steps before gradient norms are compared with their mean."""
GROWTH = 5.0
"""Growth of the mean gradient norm over its lowest value that is worth a note."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Field names are those of the checkpoint's JSON."""

    steps: int = 0
    loss: float = 0.0
    """Fast running mean of the loss"""
    slow_loss: float = 0.0
    lowest: float = 0.0
    """Lowest fast mean of the loss so far"""
    spread: float = 0.0
    """Running mean of single losses' deviations from the fast mean"""
    log_norm: float | None = None
    """Slow running mean of the logarithm of the gradient norm; None before the first finite norm"""
    lowest_log_norm: float | None = None
    """Its lowest value since the settling steps"""
    high: int = 0
    """Consecutive steps in which the loss was far above its lowest mean"""
    suspect: int = 0
    """Consecutive steps in which it was at least half as far above"""
    steep: int = 0
    """Consecutive steps in which the gradient norm was far above its mean while the loss was rising"""
    growing: int = 0
    """Consecutive steps in which the mean gradient norm was above several times its lowest while the loss was rising"""

    def after(self, loss: float, norm: float, config: TrainConfig, vocab_size: int) -> Course:
        """The course after one more step; the loss must be finite."""
        after = self._with_loss(loss, config, math.log(vocab_size))
        return after._with_norm(norm, config) if math.isfinite(norm) and norm > 0 else after

    def _with_loss(self, loss: float, config: TrainConfig, uniform: float) -> Course:
        if self.steps == 0:
            return replace(self, steps=1, loss=loss, slow_loss=loss, lowest=loss)
        deviation = abs(loss - self.loss)
        if self.steps > FIRST_DEVIATIONS:
            deviation = min(deviation, LARGEST_DEVIATION * self.spread)
        # The mean of the first steps has equal weights: a decaying weight would start from a deviation of zero.
        share = max(1 - SPREAD, 1 / self.steps)
        fast = FAST * self.loss + (1 - FAST) * loss
        spread, lowest = self.spread + share * (deviation - self.spread), min(self.lowest, fast)
        rise = _allowed_rise(config, lowest, spread, uniform)
        return replace(
            self,
            steps=self.steps + 1,
            loss=fast,
            slow_loss=SLOW * self.slow_loss + (1 - SLOW) * loss,
            lowest=lowest,
            spread=spread,
            high=self.high + 1 if fast - lowest > rise else 0,
            suspect=self.suspect + 1 if fast - lowest > SUSPECT * rise else 0,
        )

    def _with_norm(self, norm: float, config: TrainConfig) -> Course:
        new, mean = math.log(norm), self.log_norm
        if mean is None:
            return replace(self, log_norm=new)
        settled, rising = self.steps > SETTLING_STEPS, self.loss > self.slow_loss
        factor = config.health.norm_rise
        if settled and rising and factor is not None and new > mean + math.log(factor):
            return replace(self, steep=self.steep + 1)  # the mean stays, or the spike would soon be the usual norm
        mean = SLOW * mean + (1 - SLOW) * new
        lowest = self.lowest_log_norm
        if settled:
            lowest = mean if lowest is None else min(lowest, mean)
        grown = rising and lowest is not None and mean > lowest + math.log(GROWTH)
        growing = self.growing + 1 if grown else 0
        return replace(self, log_norm=mean, lowest_log_norm=lowest, steep=0, growing=growing)

    def divergence(self, config: TrainConfig) -> str | None:
        """What has gone wrong for several steps, or None."""
        patience = config.health.patience
        if config.health.loss_rise is not None and self.high >= patience:
            return f"the loss has risen from {self.lowest:.4g} to {self.loss:.4g}, for {self.high:,} steps"
        if self.steep >= patience:
            usual = math.exp(self.log_norm or 0.0)
            return (
                f"the gradient norm has been above {config.health.norm_rise:g} times its mean of {usual:.4g} "
                f"for {self.steep:,} steps, while the loss rose"
            )
        return None

    def spike(self, loss: float, factor: float | None) -> str | None:
        """What is wrong with a single loss, or None."""
        if factor is None or self.steps == 0 or loss <= factor * self.slow_loss:
            return None
        return f"the loss is {loss:.4g}, {loss / self.slow_loss:.3g} times its mean: --train.spike {factor:g}"

    def warnings(self, config: TrainConfig) -> dict[str, str]:
        """What may end in a divergence, by cause."""
        patience, found = config.health.patience, {}
        if self.suspect >= patience:
            found["loss"] = f"the loss rises: {self.loss:.4g} on average, after {self.lowest:.4g}"
        if self.growing >= patience and self.log_norm is not None and self.lowest_log_norm is not None:
            before, now = math.exp(self.lowest_log_norm), math.exp(self.log_norm)
            found["norm"] = f"the gradient norm grows: {now:.4g} on average, after {before:.4g}, while the loss rises"
        return found

    @property
    def is_suspect(self) -> bool:
        """Whether the loss is above its recent course, or the gradient norm far above its own."""
        return self.suspect > 0 or self.steep > 0

    @staticmethod
    def is_valid(data: Any) -> bool:
        """Whether JSON of a checkpoint describes a course."""
        if not isinstance(data, dict) or not data.keys() <= Course.__dataclass_fields__.keys():
            return False
        counts = ("steps", "high", "suspect", "steep", "growing")
        optional = ("log_norm", "lowest_log_norm")
        return all(
            is_count(value) if name in counts else is_finite(value) or (value is None and name in optional)
            for name, value in data.items()
        )


def _allowed_rise(config: TrainConfig, lowest: float, spread: float, uniform: float) -> float:
    """The rise of the mean loss above its lowest value that is a divergence if it lasts.

    `uniform`: the loss of equal probabilities for all tokens.
    """
    share = config.health.loss_rise or 0.0
    noise = min(DEVIATIONS * spread, MOST_NOISE * uniform)
    return max(share * (uniform - lowest), noise, SHARE_OF_LOWEST * lowest)
