"""The needs of sessions from a model, and how a trained run meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.inference.decoder import DecodeState
from mnemo.inference.generation import AnyState, TextState
from mnemo.memory.state import leaves, nbytes
from mnemo.serving.engine import Engine
from mnemo.session.memory_use import MemoryUse, measure
from mnemo.session.text_run import OpenedRun, document_start, resized, text_memory, vocabulary_digest
from mnemo.storage.memory_file import MemoryFiles

Lengths = int | tuple[int, ...] | None
"""Memory slots of the long-range layers, or of every layer; None: as in training."""


class LoadedState(NamedTuple):
    state: Any
    tokens: int
    """Tokens read and written"""
    lengths: Lengths


class SessionModel(Protocol):
    """A state is data of any kind that only the model and its engine look into."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Of the weights."""
        ...

    @property
    def engine(self) -> Engine: ...
    @property
    def memory_is_fixed(self) -> bool:
        """Whether the memory can neither be turned off nor get another length."""
        ...

    @property
    def segment(self) -> int: ...
    def start_ids(self) -> Tensor:
        """The token before a document, which an empty session reads before it writes."""
        ...

    def empty(self, lengths: Lengths) -> Any:
        """The state before any text."""
        ...

    def state_bytes(self, lengths: Lengths) -> int:
        """Bytes of a state with this memory length, known before it is allocated; MnemoError if it is impossible."""
        ...

    def num_open(self, state: Any) -> int:
        """Tokens in the open segment."""
        ...

    def resized(self, state: Any, lengths: Lengths) -> Any:
        """The state with another memory length; the open segment keeps what it has attended to so far."""
        ...

    def without_open(self, state: Any, lengths: Lengths, on: bool) -> Any:
        """The state before its open segment, with another memory length, or with an empty memory."""
        ...

    def save(self, path: Path, state: Any) -> None:
        """Write a memory file."""
        ...

    def load(self, path: Path) -> LoadedState:
        """Load a memory file of this model; any other file raises MnemoError."""
        ...

    def nbytes(self, state: Any) -> int: ...
    def memory_use(self, state: Any, on: bool) -> MemoryUse: ...


class RunSessions:
    """Sessions of a trained run."""

    memory_is_fixed = False

    def __init__(self, name: str, opened: OpenedRun, engine: Engine) -> None:
        self.name, self.opened, self.engine = name, opened, engine
        self.model, self.segment = opened.run.model, opened.run.recipe.train.segment
        self._files = MemoryFiles(self.model, vocabulary_digest(opened.tokenizer))

    @property
    def fingerprint(self) -> str:
        return self._files.fingerprint

    def start_ids(self) -> Tensor:
        return document_start(self.opened)

    def empty(self, lengths: Lengths) -> AnyState:
        return self.opened.run.first_state(1, lengths, cached=True)

    def state_bytes(self, lengths: Lengths) -> int:
        if min(lengths if isinstance(lengths, tuple) else (lengths or 0,)) < 0:
            raise MnemoError(f"memory length {lengths} is negative")
        return self._files.state_bytes(lengths)

    def num_open(self, state: AnyState) -> int:
        opened = state.state if isinstance(state, TextState) else state
        return int(opened.count[0]) if isinstance(opened, DecodeState) else 0

    def resized(self, state: TextState, lengths: Lengths) -> TextState:
        return resized(self.model, state, self._layers(lengths), self.segment)

    def without_open(self, state: TextState, lengths: Lengths, on: bool) -> TextState:
        committed = self.model.resize(state.state.state, self._layers(lengths)) if on else self.empty(lengths)
        decoder = self.model.decoder(committed, segment=self.segment)
        return TextState(decoder.state(), state.hidden, state.tokens - self.num_open(state))

    def _layers(self, lengths: Lengths) -> tuple[int, ...]:
        """Memory length of every layer."""
        if isinstance(lengths, tuple):
            return lengths
        return self.model.config.memory.lengths(self.model.config.num_layers, lengths)

    def save(self, path: Path, state: TextState) -> None:
        self._files.save(path, state, self.segment)

    def load(self, path: Path) -> LoadedState:
        state, segment = text_memory(path, self._files.load(path))
        if segment != self.segment and self.num_open(state):
            raise MnemoError(
                f"this memory ends inside a segment of {segment:,} tokens, and this server uses segments of "
                f"{self.segment:,}"
            )
        if not all(bool(torch.isfinite(leaf).all()) for _, leaf in leaves(state) if leaf.is_floating_point()):
            raise MnemoError("this memory holds numbers that are not finite")
        return LoadedState(state, int(state.tokens[0]), self.model.init_lengths(state.state.state))

    def nbytes(self, state: AnyState) -> int:
        return nbytes(state)

    def memory_use(self, state: AnyState, on: bool) -> MemoryUse:
        return measure(self.model, state, self.segment, on)
