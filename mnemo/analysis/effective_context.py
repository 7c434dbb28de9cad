"""Relative effective context length (Transformer-XL, section 4.3 and appendix C).

It is defined for a group of models. The baseline b(c, t) of token t is the lowest loss of any model given a short
context c. Given a longer context c', model i has the relative loss f_i(c, c'): the mean of min(b(c, t), l_i(c', t))
over the top-r tokens, which are those with the largest b(c, t). The relative gain g_i(c, c') is the share by which the
perplexity exp f_i(c, c) decreases. Contexts grow by a fixed step until the gain of a model is below the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mnemo.errors import MnemoError, unknown

THRESHOLD = 0.01
Losses = Mapping[str, Mapping[int, np.ndarray]]
"""Losses in nats of the same tokens, by model and context length."""


@dataclass(frozen=True, kw_only=True)
class EffectiveLength:
    """Relative effective context length of a model (Transformer-XL, section 4.3)."""

    length: int
    """The relative effective context length."""
    at_least: bool
    """True if the longest context still gained, so that the real length is larger."""
    gains: tuple[tuple[int, int, float], ...]
    """c, c' and the relative gain of every step, up to the first below the threshold."""


class Group:
    """Models that are compared with each other."""

    def __init__(self, losses: Losses, *, top: float = 1.0) -> None:
        if not 0 < top <= 1:
            raise MnemoError(f"the share r of tokens must be in (0, 1], not {top}")
        self.losses = {
            name: {at: np.asarray(row, np.float64) for at, row in own.items()} for name, own in losses.items()
        }
        self.contexts = _contexts(self.losses)
        self.top = top

    def baseline(self, context: int) -> np.ndarray:
        """b(c, t): the lowest loss of the group on every token."""
        return np.min([own[context] for own in self.losses.values()], axis=0)

    def hardest(self, context: int) -> np.ndarray:
        """Return the indices of the top-r tokens, those with the largest baselines; earlier tokens first if equal."""
        baseline = self.baseline(context)
        count = max(1, round(self.top * len(baseline)))
        return np.argsort(-baseline, kind="stable")[:count]

    def relative_loss(self, model: str, short: int, long: int) -> float:
        """f_i(c, c')."""
        chosen = self.hardest(short)
        return float(np.minimum(self.baseline(short)[chosen], self._of(model)[long][chosen]).mean())

    def unnormalised_gain(self, model: str, short: int, long: int) -> float:
        """exp f_i(c, c) - exp f_i(c, c'), in perplexity (figure 3)."""
        return float(np.exp(self.relative_loss(model, short, short)) - np.exp(self.relative_loss(model, short, long)))

    def relative_gain(self, model: str, short: int, long: int) -> float:
        """g_i(c, c')."""
        return self.unnormalised_gain(model, short, long) / float(np.exp(self.relative_loss(model, short, short)))

    def effective_length(self, model: str, threshold: float = THRESHOLD) -> EffectiveLength:
        gains = []
        for short, long in zip(self.contexts, self.contexts[1:], strict=False):
            gains.append((short, long, self.relative_gain(model, short, long)))
            if gains[-1][2] < threshold:
                return EffectiveLength(length=short, at_least=False, gains=tuple(gains))
        return EffectiveLength(length=self.contexts[-1], at_least=True, gains=tuple(gains))

    def _of(self, model: str) -> Mapping[int, np.ndarray]:
        if model not in self.losses:
            raise unknown("model", model, self.losses)
        return self.losses[model]


def relative_effective_context_length(
    losses: Losses, *, top: float = 1.0, threshold: float = THRESHOLD
) -> dict[str, EffectiveLength]:
    """Return the effective length of every model of a group; `top` is the paper's r."""
    group = Group(losses, top=top)
    return {model: group.effective_length(model, threshold) for model in group.losses}


def _contexts(losses: Mapping[str, Mapping[int, np.ndarray]]) -> tuple[int, ...]:
    """Return the context lengths. They must be the same for all models, equally spaced, with equally many tokens."""
    if not losses:
        raise MnemoError("a relative effective context length needs at least one model")
    name, first = next(iter(losses.items()))
    contexts = sorted(first)
    for other, own in losses.items():
        if sorted(own) != contexts:
            raise MnemoError(f"models of a group need the same context lengths: {name} and {other} differ")
    if len(contexts) < 2 or len(set(np.diff(contexts).tolist())) > 1:
        raise MnemoError(f"context lengths must be two or more and equally spaced, not {contexts}")
    sizes = {array.shape for own in losses.values() for array in own.values()}
    if len(sizes) > 1 or len(next(iter(sizes))) != 1 or next(iter(sizes)) == (0,):
        raise MnemoError("losses of a group must be rows of the same tokens in every context")
    return tuple(contexts)
