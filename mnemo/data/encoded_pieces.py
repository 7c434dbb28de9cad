"""Token ids of a UTF-8 file of any size, a piece at a time, equal to those of the whole text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mnemo.data.tokenizers import AnyTokenizer, ByteTokenizer, WordTokenizer
from mnemo.errors import MnemoError

PIECE = 1 << 16
"""Bytes that are read at a time."""
LONGEST_WAIT = 1 << 22
"""Bytes after which a text is cut anywhere if it has no better place."""
_BETWEEN_WORDS = re.compile(r"(?<=\S)(?= \S)")
"""Places that no token of byte-pair encoding spans: a space belongs to the word after it."""
Encode = Callable[[str], Sequence[int] | np.ndarray]


class EncodedPiece(NamedTuple):
    ids: np.ndarray
    num_bytes: int
    """Bytes of the file up to here."""


def encoded_pieces(path: Path, tokenizer: AnyTokenizer, piece: int = PIECE) -> Iterator[EncodedPiece]:
    """Encode a file with one of the project's tokenizers."""
    if isinstance(tokenizer, ByteTokenizer):
        return _encoded(_raw_pieces(path, piece), tokenizer.encode)
    by_lines = isinstance(tokenizer, WordTokenizer)
    return _encoded(_text_pieces(path, piece, by_lines), tokenizer.encode)


def text_encoded_by(path: Path, encode: Encode, piece: int = PIECE) -> Iterator[EncodedPiece]:
    """Encode a file with any tokenizer whose tokens do not span the end of a word and the space after it."""
    return _encoded(_text_pieces(path, piece, by_lines=False), encode)


def _encoded(pieces: Iterator[tuple[str | bytes, int]], encode: Callable) -> Iterator[EncodedPiece]:
    before = 0
    for piece, num_bytes in pieces:
        try:
            yield EncodedPiece(np.asarray(encode(piece), dtype=np.int64), num_bytes)
        except MnemoError as error:
            raise MnemoError(f"the text after its first {before:,} bytes: {error}" if before else str(error)) from None
        before = num_bytes


def _raw_pieces(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    done = 0
    with path.open("rb") as file:
        while data := file.read(size):
            done += len(data)
            yield data, done


def _text_pieces(path: Path, size: int, by_lines: bool) -> Iterator[tuple[str, int]]:
    """Text up to the last good place for a cut, again and again; then the rest."""
    decoder, held, done = codecs.getincrementaldecoder("utf-8-sig")(), "", 0
    for data, done in _raw_pieces(path, size):
        held += _decoded(decoder, data, done - len(data))
        cut = _last_cut(held, by_lines) or (len(held) if len(held) > LONGEST_WAIT else 0)
        if cut:
            text, held = held[:cut], held[cut:]
            yield text, done - len(held.encode())
    held += _decoded(decoder, b"", done, final=True)
    if held:
        yield held, done


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes, begin: int, final: bool = False) -> str:
    kept = len(decoder.getstate()[0])
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        raise MnemoError(f"the text is not UTF-8 at byte {begin - kept + error.start:,}") from None


def _last_cut(text: str, by_lines: bool) -> int:
    """The last good place for a cut; 0 if there is none."""
    if by_lines:
        return text.rfind("\n") + 1
    return max((match.start() for match in _BETWEEN_WORDS.finditer(text)), default=0)
