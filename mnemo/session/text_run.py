"""A trained run with its tokenizer: from text to token ids, and the states that reading and writing start from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemo.data.text_parts import Part
from mnemo.data.tokenizers import AnyTokenizer
from mnemo.errors import MnemoError
from mnemo.inference.generation import TextState
from mnemo.inference.narrow_weights import with_narrow_weights
from mnemo.inference.weight_formats import WeightFormat
from mnemo.memory.state import leaves
from mnemo.model import Model
from mnemo.storage.memory_file import LoadedMemory, load_memory
from mnemo.storage.run_folder import LoadedRun
from mnemo.storage.run_header import TOKENIZER
from mnemo.storage.run_tokenizer import load_tokenizer


class OpenedRun(NamedTuple):
    run: LoadedRun
    tokenizer: AnyTokenizer

    @property
    def unit(self) -> str:
        return self.tokenizer.unit


def with_tokenizer(run: LoadedRun) -> OpenedRun:
    """A run with the tokenizer in its folder; the corpus need not be on this machine."""
    tokenizer = load_tokenizer(run.path)
    if tokenizer is None:
        raise MnemoError(f"{run.path} has no {TOKENIZER}: it was not trained on text")
    if tokenizer.vocab_size != run.model.config.vocab_size:
        raise MnemoError(
            f"{run.path / TOKENIZER} has {tokenizer.vocab_size} symbols, the model {run.model.config.vocab_size}"
        )
    return OpenedRun(run, tokenizer)


def with_weights(opened: OpenedRun, weights: WeightFormat) -> OpenedRun:
    """The run with weights in a format for generating; see `mnemo.inference.narrow_weights`."""
    return opened._replace(run=replace(opened.run, model=with_narrow_weights(opened.run.model, weights)))


def encode(tokenizer: AnyTokenizer, text: str | bytes, what: str) -> Tensor:
    """Token ids (T,). `what` names the text in error messages."""
    try:
        ids = tokenizer.encode(text)
    except MnemoError as error:
        raise MnemoError(f"{what}: {error}") from None
    if len(ids) == 0:
        raise MnemoError(f"{what}: it contains no text")
    return torch.from_numpy(ids.astype(np.int64))


def encode_file(tokenizer: AnyTokenizer, path: Path) -> Tensor:
    """Token ids of a text file, compressed or not."""
    if not path.is_file():
        raise MnemoError(f"{path} is not a file")
    return encode(tokenizer, Part(path).load().tobytes(), str(path))


def document_start(opened: OpenedRun) -> Tensor:
    """The token before a document: the separator of documents, or the end of a line."""
    marks = ("\0", "\n", " ") if opened.run.corpus.get("documents") else ("\n", " ")
    for mark in marks:
        try:
            return encode(opened.tokenizer, mark, "the separator")
        except MnemoError:
            continue
    return torch.zeros(1, dtype=torch.int64)


def vocabulary_digest(tokenizer: AnyTokenizer) -> str:
    return hashlib.sha256(json.dumps(tokenizer.to_json(), sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def load_text_memory(path: Path, opened: OpenedRun) -> tuple[TextState, int]:
    """The state in a memory file of `mnemo read`, and the segment length that its text was read with."""
    return text_memory(path, load_memory(path, opened.run.model, vocabulary=vocabulary_digest(opened.tokenizer)))


def text_memory(path: Path, loaded: LoadedMemory) -> tuple[TextState, int]:
    """The state of one text in a memory file, and its segment length; an error if the file holds another state."""
    if not isinstance(loaded.memory, TextState) or loaded.layout.batch != 1:
        raise MnemoError(f"{path} was not written by `mnemo read`: it is not the memory of one text")
    return loaded.memory, loaded.layout.segment


def resized(model: Model, text: TextState, lengths: int | Sequence[int], segment: int) -> TextState:
    """The state with other memory lengths; the open segment keeps what it has attended to so far."""
    committed, opened = model.resize(text.state.state, lengths), text.state
    count = int(opened.count.max())
    if count:
        # Tokens of an open segment may hold one value for every memory slot, such as the refreshed memory itself.
        decoder = model.decoder(committed, segment=segment)
        decoder.feed(torch.zeros(len(opened.count), count, dtype=torch.int64, device=model.device))
        pairs = zip(leaves(opened.open), leaves(decoder.state().open), strict=True)
        if any(mine.shape != theirs.shape for (_, mine), (_, theirs) in pairs):
            raise MnemoError(
                f"the text ends inside a segment, {segment - count:,} tokens before its end: with this kind of memory, "
                "its length can change only where a segment ends"
            )
    return text._replace(state=opened._replace(state=committed))
