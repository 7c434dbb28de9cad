"""Run a model on a text and pass the attention of every layer to observers.

The reference operation computes attention; the probabilities of one layer in one segment exist at a time. Shapes: H
heads, L tokens of a segment, K keys up to its last token.
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


class AttentionSource(NamedTuple):
    """The layer and segment that an observed attention comes from."""

    layer: int
    """Index of the layer among the layers with attention"""
    segment: int
    """Number of the segment, from 0"""
    begin: int
    """Index of the segment's first token in the text"""
    full: bool
    """Whether the memory was full before the segment"""
    warm: bool
    """The same, but always True if the text is too short to fill the memory"""


class TextAttention(NamedTuple):
    """Attention of the tokens of one segment in one layer, without memory tokens as queries.

    The last L of K keys are the tokens themselves.
    """

    probabilities: Tensor
    """(H, L, K)"""
    terms: dict[str, Tensor]
    """(H, L, K) each"""
    visible: Tensor
    """(L, K)"""
    read: slice
    """The keys that are memory tokens at the start of the segment"""


class Observer(Protocol):
    def see(self, source: AttentionSource, seen: TextAttention, whole: Attended) -> None: ...


class DiagnosticsObserver(Protocol):
    """An observer of the diagnostics that memories report in every segment."""

    def see_diagnostics(self, source: AttentionSource, diagnostics: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Rows:
    """The rows of a segment: memory tokens to read, tokens, memory tokens to write."""

    read: int
    tokens: int
    write: int

    @classmethod
    def of(cls, model: Model, tokens: int) -> Rows:
        around = model.config.tokens
        return cls(0, tokens, 0) if around is None else cls(around.num_read, tokens, around.num_written)

    def text(self, attended: Attended) -> TextAttention:
        keys = attended.probabilities.shape[3] - self.write
        rows = slice(self.read, self.read + self.tokens)
        begin = keys - self.tokens - self.read
        return TextAttention(
            attended.probabilities[0, :, rows, :keys],
            {name: term[0, :, rows, :keys] for name, term in attended.terms.items()},
            attended.visible[0, 0, rows, :keys],
            slice(begin, begin + self.read),
        )


class _Record:
    """Receives the attention of a model's layers in order, and passes it to the observers."""

    def __init__(self, observers: Sequence[Observer], rows: Rows, source: AttentionSource) -> None:
        self.observers, self.rows, self.source = observers, rows, source

    def append(self, attended: Attended, /) -> None:
        text = self.rows.text(attended)
        for observer in self.observers:
            observer.see(self.source, text, attended)
        self.source = self.source._replace(layer=self.source.layer + 1)


def attending_layers(model: Model) -> tuple[int, ...]:
    """Return the indices (from 0) of the layers with attention; an error if there are none."""
    found = model.config.memory.attending(model.config.num_layers)
    if not found:
        kinds = ", ".join(sorted({type(memory).__name__ for memory in model.config.memory.memories(1)}))
        raise MnemoError(f"no layer of this model has attention: {kinds} layers have none to show")
    return found


def observe(
    model: Model,
    ids: Ids,
    observers: Sequence[Observer],
    *,
    segment: int,
    memory: int | None = None,
    diagnostics: Sequence[DiagnosticsObserver] = (),
    state: State | None = None,
    progress: ShowProgress | None = None,
) -> None:
    """Read a text (T,) in segments and pass the attention of its tokens to observers.

    `memory`: slots of the long-range layers; default: as configured. `state`: the initial state; default: empty.
    Segments are warm once the memory before them is full; if the text is too short for that, all segments are.
    """
    attending_layers(model)
    text, segment = as_ids(model, ids, at_least=1), checked_segment(segment)
    state = empty_state(model, memory) if state is None else state
    slots = max(model.memory_lengths(state))
    never_full = slots + segment > len(text)
    with evaluating(model), (progress or silent)("recording attention", len(text), unit="tokens") as bar:
        for number, part in enumerate(text.split(segment)):
            full = number * segment >= slots
            source = AttentionSource(0, number, number * segment, full, full or never_full)
            reported: dict[str, Tensor] = {}
            record = _Record(observers, Rows.of(model, len(part)), source)
            _, state = model.observe(part[None], state, record, reported)
            for observer in diagnostics:
                observer.see_diagnostics(source, reported)
            bar.advance(len(part))
