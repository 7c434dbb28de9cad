"""Convert vocabularies of published models to our tokenizers, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnemo.data.tokenizers import AnyTokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError
from mnemo.interop.convert.weight_files import refuse_vocabulary_pickle

NAMES = ("vocab.json", "vocab.txt")
ENDS, UNKNOWNS = ("<eos>", "<S>"), ("<unk>", "<UNK>")


def find(folder: Path) -> Path | None:
    """Return the vocabulary file in a folder of weights, or None; an error if it is a pickle."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    for path in sorted(folder.glob("vocab.*")):
        refuse_vocabulary_pickle(path)
    return None


def load_symbols(path: Path) -> list[str]:
    """Load symbols in the order of their ids from JSON (a list, or a map symbol -> id) or text, one symbol per line."""
    refuse_vocabulary_pickle(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MnemoError(f"{path} is missing") from None
    except UnicodeDecodeError:
        raise MnemoError(
            f"{path} is not text; pickled vocabularies are refused because loading one can run any code"
        ) from None
    if path.suffix != ".json":
        return [line.split()[0] for line in text.split("\n") if line.split()]
    try:
        return _symbols(json.loads(text), path)
    except json.JSONDecodeError:
        raise MnemoError(f"{path} is damaged or truncated: it is not JSON") from None


def _symbols(data: Any, path: Path) -> list[str]:
    """Return symbols from a list, from a map symbol -> id, or from an object with one of these under a known name."""
    if isinstance(data, list) and all(isinstance(symbol, str) for symbol in data):
        return data
    if isinstance(data, dict):
        for name in ("idx2sym", "sym2idx", "model", "vocab"):
            if isinstance(data.get(name), (list, dict)):
                return _symbols(data[name], path)
        ids = list(data.values())
        if all(type(index) is int for index in ids) and sorted(ids) == list(range(len(ids))):
            return sorted(data, key=data.__getitem__)
    raise MnemoError(f"{path} is not a vocabulary: expected a list of symbols, or ids 0, 1, 2, ... by symbol")


def tokenizer(symbols: Sequence[str]) -> AnyTokenizer:
    """Build the tokenizer: decimal bytes (published enwik8), characters with _ for a space (text8), or words."""
    if len(set(symbols)) != len(symbols):
        raise MnemoError("the vocabulary contains a symbol twice")
    if all(symbol.isdecimal() and int(symbol) < 256 and str(int(symbol)) == symbol for symbol in symbols):
        kept = bytes(map(int, symbols))
        return ByteTokenizer(kept, b"" if 10 in kept else b"\n")
    if all(len(symbol) == 1 for symbol in symbols) and " " not in symbols:
        return CharTokenizer("".join(" " if symbol == "_" else symbol for symbol in symbols))
    end = next((word for word in ENDS if word in symbols), None)
    unknown = next((word for word in UNKNOWNS if word in symbols), None)
    return WordTokenizer(tuple(symbols), end=end, both_ends=end == "<S>", unknown=unknown)


def symbols_of(known: AnyTokenizer) -> list[str] | None:
    """Return the symbols as the published code writes them; None if it has no such vocabulary."""
    if isinstance(known, ByteTokenizer):
        return [str(symbol) for symbol in known.symbols]
    if isinstance(known, CharTokenizer) and not known.unknown and "_" not in known.symbols:
        return ["_" if symbol == " " else symbol for symbol in known.symbols]
    return list(known.words) if isinstance(known, WordTokenizer) else None


def check_size(symbols: Sequence[str], vocab_size: int, where: str) -> None:
    if len(symbols) != vocab_size:
        raise MnemoError(f"{where} has {len(symbols):,} symbols, but the weights have {vocab_size:,}: they do not fit")
