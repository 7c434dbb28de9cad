"""Reading a text while watching attention: observers are shown every layer's probabilities as they are computed.

The reference operation computes them, and one layer of one segment is held at a time. Shapes: H heads, L tokens of a
segment, K keys up to its last token, Q rows and all keys of a segment with its memory tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from mnemo.analysis.inputs import Ids, as_ids, checked_segment, empty_state
from mnemo.errors import MnemoError
from mnemo.memory.state import State
from mnemo.model import Model, evaluating
from mnemo.ops import Attended
from mnemo.progress import ShowProgress, silent


class Place(NamedTuple):
    """Which attention an observer is shown."""

    place: int
    """Of the layer among those that attend"""
    segment: int
    """Number of the segment, from 0"""
    begin: int
    """The segment's first token in the text"""
    full: bool
    """Whether the memory was full already"""
    warm: bool
    """Likewise, or the whole text does not fill it"""


class OfText(NamedTuple):
    """One layer's attention in one segment, as its tokens see it: the last L of K keys are their own."""

    probabilities: Tensor
    """(H, L, K)"""
    terms: dict[str, Tensor]
    """(H, L, K) each"""
    visible: Tensor
    """(L, K)"""
    read: slice
    """The keys that are memory tokens"""


class Observer(Protocol):
    def see(self, place: Place, seen: OfText, whole: Attended) -> None: ...


class Notes(Protocol):
    """An observer of what memories tell of themselves, once a segment."""

    def hear(self, place: Place, notes: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Rows:
    """The rows of a segment: memory tokens to read, tokens, memory tokens to write."""

    read: int
    tokens: int
    write: int

    @classmethod
    def of(cls, model: Model, tokens: int) -> Rows:
        around = model.config.tokens
        return cls(0, tokens, 0) if around is None else cls(around.num, tokens, around.num_extra - around.num)

    def text(self, attended: Attended) -> OfText:
        keys = attended.probabilities.shape[3] - self.write
        rows = slice(self.read, self.read + self.tokens)
        begin = keys - self.tokens - self.read
        return OfText(
            attended.probabilities[0, :, rows, :keys],
            {name: term[0, :, rows, :keys] for name, term in attended.terms.items()},
            attended.visible[0, 0, rows, :keys],
            slice(begin, begin + self.read),
        )


class _Record:
    """What a model's layers report to, one after the other."""

    def __init__(self, observers: Sequence[Observer], rows: Rows, place: Place) -> None:
        self.observers, self.rows, self.place = observers, rows, place

    def append(self, attended: Attended, /) -> None:
        text = self.rows.text(attended)
        for observer in self.observers:
            observer.see(self.place, text, attended)
        self.place = self.place._replace(place=self.place.place + 1)


def attending_layers(model: Model) -> tuple[int, ...]:
    """Indices (from 0) of the layers that attend; an error where none does."""
    found = model.config.memory.attending(model.config.num_layers)
    if not found:
        kinds = ", ".join(sorted({type(memory).__name__ for memory in model.config.memory.memories(1)}))
        raise MnemoError(f"no layer of this model attends to anything: {kinds} layers have no attention to show")
    return found


def observe(
    model: Model,
    ids: Ids,
    observers: Sequence[Observer],
    *,
    segment: int,
    memory: int | None = None,
    notes: Sequence[Notes] = (),
    state: State | None = None,
    progress: ShowProgress | None = None,
) -> None:
    """Read a text (T,) in segments and show observers what its tokens attend to.

    `memory`: slots of the long-range layers, as configured when left out. `state`: what the text begins behind, an
    empty memory when left out. Segments count as warm once the memory before them is full; where the text is too short
    for that to happen, all of them do.
    """
    attending_layers(model)
    text, segment = as_ids(model, ids, at_least=1), checked_segment(segment)
    state = empty_state(model, memory) if state is None else state
    slots = max(model.memory_lengths(state))
    never_full = slots + segment > len(text)
    with evaluating(model), (progress or silent)("watching attention", len(text), unit="tokens") as bar:
        for number, part in enumerate(text.split(segment)):
            full = number * segment >= slots
            place = Place(0, number, number * segment, full, full or never_full)
            told: dict[str, Tensor] = {}
            record = _Record(observers, Rows.of(model, len(part)), place)
            _, state = model.observe(part[None], state, record, told)
            for observer in notes:
                observer.hear(place, told)
            bar.advance(len(part))
