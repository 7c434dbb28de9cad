"""Attention to memory, token by token: its share, and the distance where it is largest.

Shapes: H heads, L tokens of a segment, K keys up to its last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mnemo.analysis.attention_distance import by_distance
from mnemo.analysis.inputs import Ids
from mnemo.analysis.observers import AttentionSource, TextAttention, attending_layers, observe
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.ops import Attended


@dataclass(frozen=True, kw_only=True)
class MemoryAttention:
    """What each token of a text (T,) attends to before its own segment, averaged over layers and heads."""

    share: np.ndarray
    """Attention to keys before the segment, in [0, 1]."""
    peak: np.ndarray
    """Distance in tokens to the memory slot with most attention; 0 if no slot is visible."""


class MemoryAttentionObserver:
    """Averages the attention to memory over layers and heads, for every token."""

    def __init__(self, num_tokens: int, slots: tuple[int, ...]) -> None:
        """`slots`: memory slots of each attending layer that hold one token each."""
        self.slots = slots
        self.share = torch.zeros(num_tokens, dtype=torch.float64)
        self.peak = torch.zeros(num_tokens, dtype=torch.int64)
        self._segment = torch.zeros(0, 0, dtype=torch.float64)

    def see(self, source: AttentionSource, seen: TextAttention, whole: Attended) -> None:
        tokens = seen.probabilities.shape[1]
        before = seen.probabilities.mean(0)[:, : seen.read.start].cpu().double()
        where = slice(source.begin, source.begin + tokens)
        self.share[where] += before.sum(-1) / len(self.slots)
        self._add(source.layer, before, tokens)
        if source.layer == len(self.slots) - 1:
            largest, at = self._segment.max(-1)
            self.peak[where] = torch.where(largest > 0, at, 0)

    def _add(self, layer: int, before: Tensor, tokens: int) -> None:
        """Add one layer's attention (L, K - L) to memory, by distance."""
        slots = min(self.slots[layer], before.shape[1])
        newest = torch.cat([before[:, before.shape[1] - slots :], before.new_zeros(tokens, tokens)], 1)
        part = by_distance(newest)
        if layer == 0:
            self._segment = part
            return
        size = max(part.shape[1], self._segment.shape[1])
        wide = [torch.nn.functional.pad(one, (0, size - one.shape[1])) for one in (self._segment, part)]
        self._segment = wide[0] + wide[1]

    def result(self) -> MemoryAttention:
        return MemoryAttention(share=self.share.numpy(), peak=self.peak.numpy())


def attention_to_memory(
    model: Model, ids: Ids, *, segment: int, memory: int | None = None, state: State | None = None
) -> MemoryAttention:
    """Return what every token of a text (T,) attends to in memory; arguments as of `observe`."""
    lengths = model.config.memory.lengths(model.config.num_layers, memory)
    observer = MemoryAttentionObserver(len(ids), tuple(lengths[layer] for layer in attending_layers(model)))
    observe(model, ids, [observer], segment=segment, memory=memory, state=state)
    return observer.result()
