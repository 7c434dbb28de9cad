"""A model as the server uses it: its name, its tokenizer, its engine and the states that texts start from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from mnemo.data.tokenizers import AnyTokenizer, BPETokenizer, ByteTokenizer, Decoder
from mnemo.errors import MnemoError
from mnemo.inference.generation import AnyState
from mnemo.memory.state import nbytes
from mnemo.serving.engine import Engine
from mnemo.serving.session_model import RunSessions, SessionModel
from mnemo.session.text_run import OpenedRun, document_start


class TextCodec(Protocol):
    """From text to token ids and back."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str) -> Sequence[int]: ...
    def decoder(self) -> Decoder: ...
    def name(self, token: int) -> str:
        """The text of one token for lists of log-probabilities; different tokens have different names."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        ...


class ChatMessage(NamedTuple):
    role: str
    content: str


class ChatTemplate(Protocol):
    def prompt(self, messages: Sequence[ChatMessage], continued: bool) -> Sequence[int]:
        """Token ids of messages, with the begin of an answer; `continued`: after an earlier answer."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    name: str
    codec: TextCodec
    engine: Engine
    empty: AnyState
    """The state before a text"""
    start: tuple[int, ...]
    """Tokens to read before a text that has no prompt"""
    prefix: tuple[int, ...] = ()
    """Tokens that the tokenizer puts before a prompt that is given as text"""
    end: frozenset[int] = frozenset()
    """Tokens that end a text"""
    chat: ChatTemplate | None = None
    sessions: SessionModel
    """How sessions of this model are saved, loaded and changed"""
    run: OpenedRun | None = None
    """The run, or None for a model of another library"""
    state_bytes: Callable[[Any], int] = nbytes
    about: dict[str, Any] = field(default_factory=dict)
    """Further facts for `/v1/models`"""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def separator(self) -> str:
        """The text of the token between documents."""
        decoder = self.codec.decoder()
        return decoder.feed(self.start) + decoder.finish()

    def encode(self, text: str, name: str) -> Sequence[int]:
        """Token ids of a text of a request; `name` is that of its field."""
        try:
            return self.codec.encode(text)
        except MnemoError as error:
            raise MnemoError(f"'{name}': {error}") from None

    def check_ids(self, ids: Iterable[int], name: str) -> list[int]:
        """Token ids of a request; an error if one is outside of the vocabulary."""
        found, most = list(ids), self.codec.vocab_size
        for at, token in enumerate(found):
            if not 0 <= token < most:
                raise MnemoError(f"token id {token} at position {at} of '{name}' is outside of the vocabulary: {most}")
        return found


class RunCodec:
    """The tokenizer of a run."""

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self.tokenizer = tokenizer
        self._pieces = tokenizer.pieces if isinstance(tokenizer, ByteTokenizer | BPETokenizer) else None

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).astype(np.int64).tolist()

    def decoder(self) -> Decoder:
        return self.tokenizer.decoder()

    def name(self, token: int) -> str:
        return self.tokenizer.decode([token]) if self._pieces is None else bytes_name(self._pieces[token])

    def piece(self, token: int) -> bytes:
        return self.tokenizer.decode([token]).encode() if self._pieces is None else self._pieces[token]


def bytes_name(piece: bytes) -> str:
    """The text of bytes, or the bytes themselves, as OpenAI's API spells them, if they are not whole characters."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def served_run(name: str, opened: OpenedRun, engine: Engine) -> ServedModel:
    """A trained run with its engine."""
    recipe = opened.run.recipe
    return ServedModel(
        name=name,
        codec=RunCodec(opened.tokenizer),
        engine=engine,
        empty=opened.run.first_state(1, None, cached=True),
        start=tuple(document_start(opened).tolist()),
        sessions=RunSessions(name, opened, engine),
        run=opened,
        about={"unit": opened.unit, "segment": recipe.train.segment, "step": opened.run.step},
    )
