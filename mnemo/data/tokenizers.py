"""Tokenizers for bytes, characters, words and byte-pair pieces.

Vocabularies are sorted by frequency, ties by first occurrence, as adaptive softmax requires.
A tokenizer is plain data: `to_json` describes it for a corpus header, `from_json` checks a description and builds it.
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from mnemo.data.text_statistics import NUM_CODE_POINTS, SymbolCounter, id_dtype
from mnemo.errors import MnemoError, install_command, unknown

Unit = Literal["byte", "char", "word", "bpe"]
REPLACEMENT = "\ufffd"
T = TypeVar("T")
_BPE_CUTS = re.compile(r"(?<=\n)(?= \S)|(?<=\S\n)(?=\S)")
"""Positions that byte-level BPE never merges across, so that long texts can be encoded line by line."""
_BPE_BATCH = 1000
LONGEST_BPE_RUN = 256
"""Longest run of characters without a blank, or of blanks, that BPE is trained on as one word; longer ones are cut. The
library's time grows faster than the square of a word's length."""
_LONG_RUN = re.compile(rf"\S{{{LONGEST_BPE_RUN + 1},}}|\s{{{LONGEST_BPE_RUN + 1},}}")


class Decoder(Protocol):
    """Converts ids to text while they are generated; incomplete characters are kept until they are complete."""

    def feed(self, ids: Iterable[int]) -> str: ...
    def finish(self) -> str: ...


class Tokenizer(ABC):
    """What all tokenizers have in common."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A new decoder, for one text."""

    def decode(self, ids: Iterable[int]) -> str:
        decoder = self.decoder()
        return decoder.feed(ids) + decoder.finish()


def as_text(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MnemoError(f"text is not UTF-8: byte {text[error.start]:#04x} at offset {error.start}") from None


def as_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None


def _lone_surrogate(error: UnicodeEncodeError) -> MnemoError:
    return MnemoError(f"text has a lone surrogate at position {error.start}: it is not valid Unicode")


def _known(symbols: Sequence[Any], index: int) -> Any:
    if not 0 <= index < len(symbols):
        raise MnemoError(f"token id {index} is beyond the vocabulary of {len(symbols)}")
    return symbols[index]


class _BytesDecoder:
    """Decodes symbols that are bytes as UTF-8; an incomplete character is kept until it is complete."""

    def __init__(self, symbols: Sequence[bytes]) -> None:
        self._symbols = symbols
        self._codec = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        return self._codec.decode(b"".join(_known(self._symbols, int(i)) for i in ids))

    def finish(self) -> str:
        return self._codec.decode(b"", final=True)


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    symbols: bytes = bytes(range(256))
    """The byte of each id."""
    dropped: bytes = b""
    """Bytes that are skipped (the published enwik8 has no newlines)."""

    unit = "byte"

    @classmethod
    def train(cls, chunks: Iterable[np.ndarray], dropped: bytes = b"") -> ByteTokenizer:
        """Build a vocabulary of the bytes that occur."""
        counter = SymbolCounter(256)
        for chunk in chunks:
            counter.add(chunk)
        return cls(bytes(symbol for symbol in counter.ranked() if symbol not in dropped), dropped)

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    @cached_property
    def _ids(self) -> np.ndarray:
        """Id of each byte; -1 for unknown, -2 for dropped bytes."""
        table = np.full(256, -1, dtype=np.int16)
        table[list(self.dropped)] = -2
        table[list(self.symbols)] = np.arange(len(self.symbols))
        return table

    def encode(self, text: str | bytes) -> np.ndarray:
        data = as_bytes(text) if isinstance(text, str) else text
        codes = np.frombuffer(data, dtype=np.uint8)
        if self == ByteTokenizer():
            return codes
        ids = self._ids[codes]
        if (ids == -1).any():
            at = int(np.argmax(ids == -1))
            raise MnemoError(
                f"byte {codes[at]:#04x} at offset {at} is not in the vocabulary of {self.vocab_size} bytes"
            )
        return ids[ids >= 0].astype(id_dtype(self.vocab_size))

    @property
    def pieces(self) -> list[bytes]:
        """The bytes of each id."""
        return [bytes([symbol]) for symbol in self.symbols]

    def decoder(self) -> Decoder:
        return _BytesDecoder(self.pieces)

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, "symbols": list(self.symbols), "dropped": list(self.dropped)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ByteTokenizer:
        symbols, dropped = (_bytes_field(data, name) for name in ("symbols", "dropped"))
        _require(len(set(symbols)) == len(symbols) > 0 and not set(symbols) & set(dropped), "its bytes repeat")
        return cls(symbols, dropped)


@dataclass(frozen=True)
class CharTokenizer(Tokenizer):
    symbols: str
    """The character of each id."""
    unknown: bool = False
    """Unknown characters get the last id instead of raising an error."""

    unit = "char"

    @classmethod
    def train(cls, chunks: Iterable[str], unknown: bool = False) -> CharTokenizer:
        counter = SymbolCounter(NUM_CODE_POINTS)
        for chunk in chunks:
            counter.add(_code_points(chunk))
        return cls("".join(map(chr, counter.ranked())), unknown)

    @property
    def vocab_size(self) -> int:
        return len(self.symbols) + self.unknown

    @cached_property
    def _ids(self) -> np.ndarray:
        table = np.full(NUM_CODE_POINTS, len(self.symbols) if self.unknown else -1, dtype=np.int32)
        table[_code_points(self.symbols)] = np.arange(len(self.symbols))
        return table

    def encode(self, text: str | bytes) -> np.ndarray:
        text = as_text(text)
        ids = self._ids[_code_points(text)]
        if (ids < 0).any():
            at = int(np.argmax(ids < 0))
            raise MnemoError(
                f"character {text[at]!r} at position {at} is not in the vocabulary of {self.vocab_size} characters"
            )
        return ids.astype(id_dtype(self.vocab_size))

    def decoder(self) -> Decoder:
        return _CharDecoder(self.symbols + REPLACEMENT * self.unknown)

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, "symbols": self.symbols, "unknown": self.unknown}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CharTokenizer:
        symbols = _field(data, "symbols", str)
        _require(0 < len(set(symbols)) == len(symbols), "its characters repeat")
        return cls(symbols, _field(data, "unknown", bool))


class _CharDecoder:
    def __init__(self, symbols: str) -> None:
        self._symbols = symbols

    def feed(self, ids: Iterable[int]) -> str:
        return "".join(_known(self._symbols, int(i)) for i in ids)

    def finish(self) -> str:
        return ""


def _code_points(text: str) -> np.ndarray:
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None


class _Index(dict[str, int]):
    """Ids of words; `unknown` is the id of all other words, or None to raise an error for them."""

    unknown: int | None = None

    def __missing__(self, word: str) -> int:
        if self.unknown is None:
            raise MnemoError(f"the word {word!r} is not in the vocabulary of {len(self)} words")
        return self.unknown


@dataclass(frozen=True)
class WordTokenizer(Tokenizer):
    words: tuple[str, ...]
    end: str | None = "<eos>"
    """The word that marks the end of a line."""
    both_ends: bool = False
    """Put `end` before each line too (One Billion Word)."""
    unknown: str | None = None
    """The word that replaces words outside the vocabulary; None raises an error for them."""
    lower: bool = False

    unit = "word"

    @classmethod
    def train(
        cls,
        chunks: Iterable[str],
        *,
        end: str | None = "<eos>",
        both_ends: bool = False,
        unknown: str | None = None,
        lower: bool = False,
        limit: int | None = None,
    ) -> WordTokenizer:
        """Build a vocabulary: special words first, then the others by frequency; at most `limit` in total."""
        counts: Counter[str] = Counter()
        for chunk in chunks:
            counts.update((chunk.lower() if lower else chunk).split())
        special = [word for word in (end, unknown if unknown not in counts else None) if word is not None]
        ranked = [word for word, _ in counts.most_common() if word not in special]
        words = (special + ranked)[:limit]
        if unknown is not None and unknown not in words:
            words[-1] = unknown
        return cls(tuple(words), end, both_ends, unknown, lower)

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> _Index:
        index = _Index((word, i) for i, word in enumerate(self.words))
        index.unknown = None if self.unknown is None else index[self.unknown]
        return index

    def encode(self, text: str | bytes) -> np.ndarray:
        """Return the ids of the text; every newline ends a line, so a last line without newline has no end word."""
        return self.encode_lines(text)[0]

    def encode_lines(self, text: str | bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the text, and the index of the first id of each line."""
        text = as_text(text).replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = (text.lower() if self.lower else text).split("\n")
        words: list[str] = []
        begins = []
        for line in lines:
            begins.append(len(words))
            self._add(words, line)
            if self.end is not None:
                words.append(self.end)
        if rest.strip():
            begins.append(len(words))
            self._add(words, rest)
        ids = np.fromiter(map(self._ids.__getitem__, words), id_dtype(self.vocab_size), count=len(words))
        return ids, np.array(begins, dtype=np.int64)

    def _add(self, words: list[str], line: str) -> None:
        if self.both_ends and self.end is not None:
            words.append(self.end)
        words.extend(line.split())

    def decoder(self) -> Decoder:
        return _WordDecoder(self.words, self.end, self.both_ends)

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "words": list(self.words),
            "end": self.end,
            "both_ends": self.both_ends,
            "unknown": self.unknown,
            "lower": self.lower,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> WordTokenizer:
        words, end, unknown_word = _field(data, "words", list), data.get("end"), data.get("unknown")
        _require(all(isinstance(word, str) for word in words), "its words are not text")
        _require(0 < len(set(words)) == len(words), "its words repeat")
        _require(all(word is None or word in words for word in (end, unknown_word)), "a special word is missing")
        both_ends, lower = (_field(data, name, bool) for name in ("both_ends", "lower"))
        return cls(tuple(words), end, both_ends, unknown_word, lower)


class _WordDecoder:
    """Joins words by spaces; the end word becomes a newline."""

    def __init__(self, words: Sequence[str], end: str | None, both_ends: bool) -> None:
        self._words, self._end, self._both_ends = words, end, both_ends
        self._at_line_start = True

    def feed(self, ids: Iterable[int]) -> str:
        return "".join(self._text(_known(self._words, int(i))) for i in ids)

    def _text(self, word: str) -> str:
        if word == self._end:
            opens_line = self._both_ends and self._at_line_start
            self._at_line_start = True
            return "" if opens_line else "\n"
        before = "" if self._at_line_start else " "
        self._at_line_start = False
        return before + word

    def finish(self) -> str:
        return ""


@dataclass(frozen=True)
class BPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding by the `tokenizers` library."""

    model: str
    """JSON description in the library's format."""

    unit = "bpe"

    @classmethod
    def train(cls, chunks: Iterable[str], vocab_size: int) -> BPETokenizer:
        if vocab_size < 256:
            raise MnemoError(f"a byte-level BPE vocabulary needs at least 256 pieces, not {vocab_size}")
        library = _bpe_library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=sorted(_byte_letters()),
            special_tokens=[],
            show_progress=False,
        )
        pieces = (piece for chunk in chunks for piece in _with_short_runs(chunk))
        tokenizer.train_from_iterator(pieces, trainer)
        return cls(tokenizer.to_str())

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            return _bpe_library().Tokenizer.from_str(self.model)
        except MnemoError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise MnemoError(f"not a tokenizer of the 'tokenizers' library: {error}") from None

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def names(self) -> list[str]:
        """Return every piece in the library's notation, with one letter per byte."""
        return [self._tokenizer.id_to_token(i) for i in range(self.vocab_size)]

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every piece."""
        letters = _byte_letters()
        return [bytes(letters[letter] for letter in piece) for piece in self.names()]

    def encode(self, text: str | bytes) -> np.ndarray:
        lines = _BPE_CUTS.split(as_text(text))
        batches = (lines[i : i + _BPE_BATCH] for i in range(0, len(lines), _BPE_BATCH))
        encodings = (encoding for batch in batches for encoding in self._tokenizer.encode_batch_fast(batch))
        return np.array([i for encoding in encodings for i in encoding.ids], dtype=id_dtype(self.vocab_size))

    def decoder(self) -> Decoder:
        return _BytesDecoder(self.pieces)

    def to_json(self) -> dict[str, Any]:
        return {"unit": self.unit, "model": json.loads(self.model)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BPETokenizer:
        model = _field(data, "model", dict)
        _check_bpe(model)
        return cls(json.dumps(model, ensure_ascii=False))


def _with_short_runs(text: str) -> Iterator[str]:
    """Yield the text in pieces, cut only inside long runs; a text without long runs stays whole."""
    begin = 0
    for run in _LONG_RUN.finditer(text):
        for cut in range(run.start() + LONGEST_BPE_RUN, run.end(), LONGEST_BPE_RUN):
            yield text[begin:cut]
            begin = cut
    yield text[begin:]


def _bpe_library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise MnemoError(f"BPE needs the 'tokenizers' library: {install_command('bpe')}") from None
    return tokenizers


def _check_bpe(description: dict[str, Any]) -> None:
    """Require byte-level BPE as built by `train`: other parts of the library's format could be slow, fail or panic."""
    model, added = description.get("model"), description.get("added_tokens") or []
    kinds = {"pre_tokenizer": "ByteLevel", "decoder": "ByteLevel", "model": "BPE"}
    for name, kind in kinds.items():
        part = description.get(name)
        _require(isinstance(part, dict) and part.get("type") == kind, f"its {name} is not {kind}")
    for name in ("normalizer", "post_processor", "truncation", "padding"):
        _require(description.get(name) is None, f"it has a {name}")
    _require(added == [], "it has added tokens")
    vocabulary, merges = (model or {}).get("vocab"), (model or {}).get("merges")
    _require(isinstance(vocabulary, dict) and isinstance(merges, list), "it has no vocabulary or no merges")
    assert isinstance(vocabulary, dict) and isinstance(merges, list)
    ids, letters = list(vocabulary.values()), _byte_letters().keys()
    _require(all(type(i) is int for i in ids) and sorted(ids) == list(range(len(ids))), "its ids have gaps")
    _require(len(ids) > 0 and all(piece and letters >= set(piece) for piece in vocabulary), "a piece is not bytes")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        _require(is_pair, "a merge is not a pair of pieces")
        _require({*pair, "".join(pair)} <= vocabulary.keys(), "a merge uses a piece that is not in the vocabulary")


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter in byte-level BPE's notation: printable bytes are themselves, others U+0100..."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


AnyTokenizer = ByteTokenizer | CharTokenizer | WordTokenizer | BPETokenizer
_KINDS = {kind.unit: kind for kind in (ByteTokenizer, CharTokenizer, WordTokenizer, BPETokenizer)}


def from_json(data: Any) -> AnyTokenizer:
    """Build the tokenizer that `to_json` described; an error if the description is wrong."""
    if not isinstance(data, dict):
        raise MnemoError("tokenizer: expected an object")
    unit = data.get("unit")
    if not isinstance(unit, str) or unit not in _KINDS:
        raise unknown("tokenizer unit", str(unit), _KINDS)
    return _KINDS[unit].from_json(data)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise MnemoError(f"the tokenizer's description is damaged: {problem}")


def _field(data: dict[str, Any], name: str, kind: type[T]) -> T:
    value = data.get(name)
    if not isinstance(value, kind):
        raise MnemoError(f"the tokenizer's description is damaged: '{name}' is missing or of a wrong type")
    return value


def _bytes_field(data: dict[str, Any], name: str) -> bytes:
    values = _field(data, name, list)
    _require(all(type(value) is int and 0 <= value < 256 for value in values), f"'{name}' are not bytes")
    return bytes(values)
