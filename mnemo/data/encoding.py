"""Encode text as ids, a few megabytes at a time, and find where documents begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mnemo.data.corpus import IdWriter, SplitHeader
from mnemo.data.text_parts import Part
from mnemo.data.text_statistics import TextCounter
from mnemo.data.tokenizers import AnyTokenizer, BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.progress import Advance

NUL = "\0"
"""Ends a document. It is kept as an id for bytes, characters and BPE; words have line ends instead."""

Chunk = tuple[np.ndarray, str]
"""A piece of text as bytes, and as text if it was decoded."""
Encoded = tuple[np.ndarray, np.ndarray]
"""Ids, and the offsets among them at which documents begin."""


def total_bytes(parts: Sequence[Part]) -> int | None:
    sizes = [size for part in parts if (size := part.size()) is not None]
    return sum(sizes) if len(sizes) == len(parts) else None


def chunks(parts: Sequence[Part], bar: Advance, *, decode: bool) -> Iterator[Chunk]:
    """Yield the text of one split, with a NUL between its files."""
    for i, part in enumerate(parts):
        if i:
            yield np.zeros(1, dtype=np.uint8), NUL
        for chunk, text in part.text() if decode else ((chunk, "") for chunk in part.chunks()):
            yield chunk, text
            bar.advance(len(chunk))


def encode_split(parts: Sequence[Part], tokenizer: AnyTokenizer, writer: IdWriter, bar: Advance) -> SplitHeader:
    counter = TextCounter()
    pieces = _counted(chunks(parts, bar, decode=not isinstance(tokenizer, ByteTokenizer)), counter)
    for ids, begins in _encoded(tokenizer, pieces):
        writer.begin_documents(begins)
        writer.write(ids)
    counter.finish()
    return writer.finish(num_bytes=counter.num_bytes, num_words=counter.num_words, num_lines=counter.num_lines)


def _counted(pieces: Iterator[Chunk], counter: TextCounter) -> Iterator[Chunk]:
    for data, text in pieces:
        counter.add(data)
        yield data, text


def _encoded(tokenizer: AnyTokenizer, pieces: Iterator[Chunk]) -> Iterator[Encoded]:
    if isinstance(tokenizer, ByteTokenizer):
        nul = tokenizer.symbols.find(0)
        return (_with_documents(tokenizer.encode(data.tobytes()), nul) for data, _ in pieces)
    if isinstance(tokenizer, CharTokenizer):
        nul = tokenizer.symbols.find(NUL)
        return (_with_documents(tokenizer.encode(text), nul) for _, text in pieces)
    if isinstance(tokenizer, BPETokenizer):
        return _encoded_bpe(tokenizer, pieces)
    return _encoded_words(tokenizer, pieces)


def _with_documents(ids: np.ndarray, nul: int) -> Encoded:
    return ids, np.flatnonzero(ids == nul) + 1


def _encoded_bpe(tokenizer: BPETokenizer, pieces: Iterator[Chunk]) -> Iterator[Encoded]:
    for text, ends in _documents(pieces):
        ids = tokenizer.encode(text + NUL if ends else text)
        yield ids, np.full(int(ends), len(ids))


def _encoded_words(tokenizer: WordTokenizer, pieces: Iterator[Chunk]) -> Iterator[Encoded]:
    """Encode words; a missing newline at the end of a document is added. With `both_ends`, lines are documents."""
    line_open = False
    for text, ends in _documents(pieces):
        line_open = not text.endswith(("\n", "\r")) if text else line_open
        if ends and line_open:
            text, line_open = text + "\n", False
        ids, lines = tokenizer.encode_lines(text)
        yield ids, lines if tokenizer.both_ends else np.full(int(ends), len(ids))
    if line_open:
        yield tokenizer.encode("\n"), np.empty(0, dtype=np.int64)


def _documents(pieces: Iterator[Chunk]) -> Iterator[tuple[str, bool]]:
    """Yield pieces of text, and whether a document ends after each."""
    for _, text in pieces:
        *closed, rest = text.split(NUL)
        yield from ((document, True) for document in closed)
        if rest:
            yield rest, False
