"""LaMemo's memorising coefficient alpha: the weight of a memory row's old context against the look-ahead context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.analysis.inputs import Ids, as_ids, checked_segment, empty_state
from mnemo.analysis.observers import AttentionSource, observe
from mnemo.errors import MnemoError
from mnemo.memory import Lookahead
from mnemo.model import Model
from mnemo.progress import ShowProgress

PREFIX = "alpha."
"""Prefix of the diagnostics of look-ahead memories; the layer's index among the attending layers follows."""


@dataclass(frozen=True, kw_only=True)
class Alpha:
    layers: tuple[int, ...]
    """Indices (from 0) of the layers whose memory is refreshed."""
    by_head: Tensor
    """(layers, heads, slots), averaged over segments; slot 0 is the oldest."""
    segments: int
    """Number of segments in the averages."""

    @property
    def mean(self) -> Tensor:
        """(layers, slots), averaged over heads (figure 6 of the paper)."""
        return self.by_head.mean(1)


def has_alpha(model: Model) -> bool:
    """Return whether a layer interpolates and a layer above it uses the refreshed memory."""
    config = model.config
    memories = config.memory.memories(config.num_layers)
    return any(
        isinstance(memory, Lookahead)
        and memory.interpolates
        and (memory.refresh_last or memories[index + 1 : index + 2] == (memory,))
        for index, memory in enumerate(memories)
    )


class AlphaObserver:
    """Accumulates the coefficients of segments with a full memory; empty slots have no coefficient."""

    def __init__(self, layers: tuple[int, ...], most: int | None = None) -> None:
        self.layers, self.most, self.segments = layers, most, 0
        self.sums: dict[int, Tensor] = {}

    def see_diagnostics(self, source: AttentionSource, diagnostics: dict[str, Tensor]) -> None:
        found = {name: alpha for name, alpha in diagnostics.items() if name.startswith(PREFIX)}
        if not source.full or not found or self.segments == self.most:
            return
        for name, rows in found.items():
            index = int(name.removeprefix(PREFIX))
            alpha = rows[0].transpose(0, 1).cpu().double()  # (H, M)
            self.sums[index] = self.sums.get(index, 0) + alpha
        self.segments += 1

    def result(self) -> Alpha | None:
        """Return the averages; None if the memory was never full."""
        if not self.segments:
            return None
        indices = sorted(self.sums)
        by_head = torch.stack([self.sums[index] for index in indices]) / self.segments
        return Alpha(layers=tuple(self.layers[index] for index in indices), by_head=by_head, segments=self.segments)


def alpha(
    model: Model,
    ids: Ids,
    *,
    segment: int,
    segments: int = 100,
    memory: int | None = None,
    progress: ShowProgress | None = None,
) -> Alpha:
    """Return alpha of every refreshed layer and slot, averaged over `segments` segments with a full memory."""
    if not has_alpha(model):
        raise MnemoError("this model has no look-ahead memory with interpolation, so there is no coefficient alpha")
    text, segment = as_ids(model, ids), checked_segment(segment)
    filling = max(model.memory_lengths(empty_state(model, memory)))
    needed = filling + segment * segments
    observer = AlphaObserver(model.config.memory.attending(model.config.num_layers), segments)
    text = text[: needed + segment]
    observe(model, text, [], segment=segment, memory=memory, diagnostics=[observer], progress=progress)
    found = observer.result()
    if found is None:
        raise MnemoError(f"a text of {len(text)} tokens never fills a memory of {filling}: use a longer text")
    return found
