"""LaMemo's memorising coefficient: how much of a memory row is its past, and how much it has looked up ahead."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.analysis.inputs import Ids, as_ids, checked_segment, empty_state
from mnemo.analysis.observers import Place, observe
from mnemo.errors import MnemoError
from mnemo.memory import Lookahead
from mnemo.model import Model
from mnemo.progress import ShowProgress

NOTE = "alpha."
"""How look-ahead memories name their coefficients, before the place of the layer."""


@dataclass(frozen=True, kw_only=True)
class Alpha:
    layers: tuple[int, ...]
    """Indices (from 0) of the layers whose memory is refreshed."""
    by_head: Tensor
    """(layers, heads, slots), averaged over segments; slot 0 is the oldest."""
    segments: int
    """How many were averaged over."""

    @property
    def mean(self) -> Tensor:
        """(layers, slots), the heads averaged (figure 6 of the paper)."""
        return self.by_head.mean(1)


def has_alpha(model: Model) -> bool:
    """Whether any layer interpolates, and something above reads its memory."""
    config = model.config
    memories = config.memory.memories(config.num_layers)
    return any(
        isinstance(memory, Lookahead)
        and memory.interpolates
        and (memory.refresh_last or memories[index + 1 : index + 2] == (memory,))
        for index, memory in enumerate(memories)
    )


class AlphaObserver:
    """Gathers the coefficients of segments whose memory is full: slots that hold nothing have none."""

    def __init__(self, layers: tuple[int, ...], most: int | None = None) -> None:
        self.layers, self.most, self.segments = layers, most, 0
        self.sums: dict[int, Tensor] = {}

    def hear(self, place: Place, notes: dict[str, Tensor]) -> None:
        found = {name: note for name, note in notes.items() if name.startswith(NOTE)}
        if not place.full or not found or self.segments == self.most:
            return
        for name, note in found.items():
            index = int(name.removeprefix(NOTE))
            alpha = note[0].transpose(0, 1).cpu().double()  # (H, M)
            self.sums[index] = self.sums.get(index, 0) + alpha
        self.segments += 1

    def result(self) -> Alpha | None:
        """None where no memory was full."""
        if not self.segments:
            return None
        places = sorted(self.sums)
        by_head = torch.stack([self.sums[place] for place in places]) / self.segments
        return Alpha(layers=tuple(self.layers[place] for place in places), by_head=by_head, segments=self.segments)


def alpha(
    model: Model,
    ids: Ids,
    *,
    segment: int,
    segments: int = 100,
    memory: int | None = None,
    progress: ShowProgress | None = None,
) -> Alpha:
    """The coefficient of every refreshed layer and slot, averaged over so many segments behind a full memory."""
    if not has_alpha(model):
        raise MnemoError("this model has no look-ahead memory that interpolates: there is no coefficient alpha")
    text, segment = as_ids(model, ids), checked_segment(segment)
    filling = max(model.memory_lengths(empty_state(model, memory)))
    needed = filling + segment * segments
    observer = AlphaObserver(model.config.memory.attending(model.config.num_layers), segments)
    observe(model, text[: needed + segment], [], segment=segment, memory=memory, notes=[observer], progress=progress)
    found = observer.result()
    if found is None:
        raise MnemoError(f"a text of {len(text)} tokens never fills a memory of {filling}: a longer one has an alpha")
    return found
