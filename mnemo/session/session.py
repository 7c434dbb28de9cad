"""A session: one text that a model reads and continues, with everything that the next token depends on.

    session = Session(opened)
    session.read("It was a dark night")          # returns the text's loss
    for piece in session.write(200): ...         # text as it is generated; stop at any time
    other = session.fork()                       # costs nothing: states are never changed
    session.save("night.memory")                 # the same files as `mnemo read` writes

A session prints nothing and reads no terminal: command line, servers and notebooks use the same object.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo.display import Shown, Summary
from mnemo.errors import MnemoError, require_not_negative, require_positive
from mnemo.inference.generation import NOT_FINITE, AnyState, TextState, TextWriter, read
from mnemo.inference.sampling_options import Sampling
from mnemo.memory.state import State
from mnemo.model.memory_limits import require_state_room
from mnemo.progress import ShowProgress
from mnemo.session.memory_use import MemoryUse, measure
from mnemo.session.text_loss import TextLoss
from mnemo.session.text_run import (
    OpenedRun,
    document_start,
    encode,
    encode_file,
    load_text_memory,
    resized,
    vocabulary_digest,
)
from mnemo.storage.memory_file import save_memory

TAIL = 8
"""Tokens before a reply that its decoder gets: they decide about a space, and complete a character of several bytes."""
LARGEST_SEED = 2**62


class Session(Shown):
    """A text in progress. `read` and `write` replace `state`, and never change it."""

    def __init__(
        self, opened: OpenedRun, *, sampling: Sampling | None = None, seed: int = 0, memory_length: int | None = None
    ) -> None:
        """`memory_length`: slots of the long-range layers; None: as in training."""
        self.opened, self.model = opened, opened.run.model
        self.sampling = sampling or Sampling()
        self.sampling.check()
        self.segment = opened.run.recipe.train.segment
        self.remembers = True
        """Whether anything is kept from one segment to the next."""
        self._lengths: int | tuple[int, ...] | None = self._checked(memory_length)
        self._random = _generator(seed)
        self.forget()

    @property
    def num_tokens(self) -> int:
        """Tokens read and written so far."""
        return int(self.state.tokens[0]) if isinstance(self.state, TextState) else 0

    def read(self, text: str | bytes, progress: ShowProgress | None = None) -> TextLoss:
        """Read a text after everything so far, and return its loss."""
        return self.read_tokens(encode(self.opened.tokenizer, text, "the text"), progress)

    def read_file(self, path: str | Path, progress: ShowProgress | None = None) -> TextLoss:
        """Read a text file; xz, gz and bz2 files are decompressed."""
        return self.read_tokens(encode_file(self.opened.tokenizer, Path(path)), progress)

    def read_tokens(self, ids: Tensor, progress: ShowProgress | None = None) -> TextLoss:
        """Read token ids (T,)."""
        nats, predicted, left = 0.0, 0, ids
        while len(left):
            # Without memory, each segment starts from an empty state.
            piece, left = (left, left[:0]) if self.remembers else left.tensor_split([self._room()])
            state, score = read(self.model, piece, segment=self.segment, state=self.state, progress=progress)
            self._take(state, piece[-max(self.segment, TAIL) :].tolist())
            nats, predicted = nats + score.nats, predicted + score.tokens
        if not math.isfinite(nats):
            raise MnemoError(NOT_FINITE)
        return TextLoss(nats, predicted, len(ids), self.opened.unit)

    def score(self, text: str | bytes) -> TextLoss:
        """The loss of a text after everything so far, without keeping it."""
        return self.fork().read(text)

    def write(self, num_tokens: int) -> Generator[str, None, None]:
        """Continue the text by `num_tokens`, and yield it in pieces while it is generated.

        A caller that stops early closes the iterator (`contextlib.closing`); the session then holds the tokens so far.
        """
        require_positive("number of tokens", num_tokens)
        return self._write(num_tokens)

    def _write(self, num_tokens: int) -> Generator[str, None, None]:
        if not isinstance(self.state, TextState):
            self.read_tokens(document_start(self.opened))
        decoder, left = self.opened.tokenizer.decoder(), num_tokens
        decoder.feed(self._tail)
        while left:
            count = left if self.remembers else min(left, self._room())
            for token in self._write_tokens(count):
                yield decoder.feed([token])
            left -= count
        yield decoder.finish()

    def _write_tokens(self, count: int) -> Generator[int, None, None]:
        assert isinstance(self.state, TextState)
        writer, tokens = TextWriter(self.model, self.state, self.segment, self.sampling), []
        try:
            for _ in range(count):
                tokens.append(int(writer.write(torch.rand(1, generator=self._random, dtype=torch.float64))))
                yield tokens[-1]
        finally:
            if tokens:
                self._take(writer.state(), tokens)

    def generate(self, num_tokens: int) -> str:
        """Continue the text by `num_tokens`, and return them as text."""
        return "".join(self.write(num_tokens))

    def fork(self, seed: int | None = None) -> Session:
        """An independent copy that shares this session's state; with a seed, with other random numbers."""
        other = copy.copy(self)
        other._random = _generator(0).set_state(self._random.get_state()) if seed is None else _generator(seed)
        return other

    def reseed(self, seed: int) -> None:
        """Start the random numbers again from a seed."""
        self._random = _generator(seed)

    def forget(self) -> None:
        """Drop everything read and written; settings stay."""
        self.state: AnyState = self.opened.run.first_state(1, self._lengths, cached=True)
        self._open: tuple[int, ...] | None = ()
        """Tokens of the open segment; None after loading a memory file, which does not have them."""
        self._tail: tuple[int, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write a memory file, which `load`, `mnemo generate --memory` and `mnemo read --memory` continue from."""
        if not isinstance(self.state, TextState):
            raise MnemoError("there is nothing to save: no text has been read yet")
        vocabulary = vocabulary_digest(self.opened.tokenizer)
        save_memory(path, self.model, self.state, segment=self.segment, vocabulary=vocabulary)

    def load(self, path: str | Path) -> None:
        """Continue from a memory file of the same model; its memory lengths become the session's."""
        self.state, self.segment = load_text_memory(Path(path), self.opened)
        self._lengths, self.remembers = self.model.init_lengths(self.state.state.state), True
        self._open, self._tail = None if int(self.state.state.count[0]) else (), ()

    def set_memory(self, length: int | None = None, on: bool = True) -> None:
        """Set the slots of the long-range layers (None: as in training), or turn all memory off.

        The newest slots stay. The tokens of the open segment are computed again with the new memory.
        """
        lengths, before = self._checked(length), self.state
        if isinstance(before, TextState):
            self.state = self._with_memory(before, lengths, on)
        self._lengths, self.remembers = lengths, on
        if not isinstance(before, TextState):
            self.forget()

    def _with_memory(self, text: TextState, lengths: int | None, on: bool) -> TextState:
        layers = self.model.config.memory.lengths(self.model.config.num_layers, lengths)
        if self._open is None and on:
            return resized(self.model, text, layers, self.segment)
        return self._reopened(text, self.model.resize(text.state.state, layers) if on else self._empty(lengths))

    def memory(self) -> MemoryUse:
        """The use of the memory: slots filled of every layer, tokens read."""
        return measure(self.model, self.state, self.segment, self.remembers)

    def summary(self) -> Summary:
        use = self.memory().summary()
        temperature, top_k, top_p = self.sampling
        limits = [f"{name} {value}" for name, value in (("top_k", top_k), ("top_p", top_p)) if value is not None]
        facts = [*use.facts, ("sampling", ", ".join([f"temperature {temperature:g}", *limits]))]
        return Summary(f"session of {self.opened.run.path.name}: {use.title}", facts)

    def _checked(self, length: int | None) -> int | None:
        """A memory length that is possible and fits this machine."""
        require_not_negative("memory length", length)
        config, device = self.model.config, self.model.device
        require_state_room(config, device, batch=1, segment=self.segment, lengths=length, cached=True)
        return length

    def _empty(self, lengths: int | tuple[int, ...] | None) -> State:
        return self.model.init(1, lengths, cached=True)

    def _room(self) -> int:
        """Tokens that the open segment still takes."""
        opened = self.state.state if isinstance(self.state, TextState) else None
        return self.segment - (0 if opened is None else int(opened.count[0]))

    def _take(self, state: TextState, tokens: Sequence[int]) -> None:
        """Continue from a state after further tokens."""
        count, together = int(state.state.count[0]), (*(self._open or ()), *tokens)
        if self._open is not None or len(tokens) >= count:
            self._open = together[len(together) - count :]
        self.state, self._tail = state, (*self._tail, *tokens)[-TAIL:]
        if not self.remembers and not count:
            self.state = self._reopened(state, self._empty(self._lengths))

    def _reopened(self, text: TextState, committed: State) -> TextState:
        """The text after another memory; the tokens of the open segment are read again."""
        if self._open is None:
            left = self.segment - int(text.state.count[0])
            raise MnemoError(f"the loaded memory ends inside a segment: change it after {left:,} more tokens")
        if self._open:
            after, _ = read(self.model, torch.tensor(self._open), segment=self.segment, state=committed)
            return after._replace(tokens=text.tokens)
        return text._replace(state=self.model.decoder(committed, segment=self.segment).state())


def _generator(seed: int) -> Any:
    if not 0 <= seed < LARGEST_SEED:
        raise MnemoError(f"seed {seed} is not between 0 and 2^62")
    return torch.Generator().manual_seed(seed)
