"""Vocabularies that came with a published model, as our tokenizers, and back."""

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
    """The vocabulary beside some weights; an error where there is only a pickled one."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    for path in sorted(folder.glob("vocab.*")):
        refuse_vocabulary_pickle(path)
    return None


def load_symbols(path: Path) -> list[str]:
    """The symbols of a file in the order of their ids: JSON (a list, or ids by symbol) or one symbol a line."""
    refuse_vocabulary_pickle(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MnemoError(f"{path} is missing") from None
    except UnicodeDecodeError:
        raise MnemoError(
            f"{path} is not text; if it is a pickled vocabulary, mnemo does not read it: it could run any code"
        ) from None
    if path.suffix != ".json":
        return [line.split()[0] for line in text.split("\n") if line.split()]
    try:
        return _symbols(json.loads(text), path)
    except json.JSONDecodeError:
        raise MnemoError(f"{path} is damaged or truncated: it is not JSON") from None


def _symbols(data: Any, path: Path) -> list[str]:
    """A list; or ids by symbol; or an object that holds one of these under a known name."""
    if isinstance(data, list) and all(isinstance(symbol, str) for symbol in data):
        return data
    if isinstance(data, dict):
        for name in ("idx2sym", "sym2idx", "model", "vocab"):
            if isinstance(data.get(name), (list, dict)):
                return _symbols(data[name], path)
        ids = list(data.values())
        if all(type(index) is int for index in ids) and sorted(ids) == list(range(len(ids))):
            return sorted(data, key=data.__getitem__)
    raise MnemoError(f"{path} is no vocabulary: neither a list of symbols nor an id from 0 on for each of them")


def tokenizer(symbols: Sequence[str]) -> AnyTokenizer:
    """Bytes in decimal (the published enwik8), single characters with _ for a blank (text8), or words."""
    if len(set(symbols)) != len(symbols):
        raise MnemoError("the vocabulary has a symbol twice")
    if all(symbol.isdecimal() and int(symbol) < 256 and str(int(symbol)) == symbol for symbol in symbols):
        kept = bytes(map(int, symbols))
        return ByteTokenizer(kept, b"" if 10 in kept else b"\n")
    if all(len(symbol) == 1 for symbol in symbols) and " " not in symbols:
        return CharTokenizer("".join(" " if symbol == "_" else symbol for symbol in symbols))
    end = next((word for word in ENDS if word in symbols), None)
    unknown = next((word for word in UNKNOWNS if word in symbols), None)
    return WordTokenizer(tuple(symbols), end=end, both_ends=end == "<S>", unknown=unknown)


def symbols_of(known: AnyTokenizer) -> list[str] | None:
    """The symbols as the published code writes them; None where it has no such vocabulary."""
    if isinstance(known, ByteTokenizer):
        return [str(symbol) for symbol in known.symbols]
    if isinstance(known, CharTokenizer) and not known.unknown and "_" not in known.symbols:
        return ["_" if symbol == " " else symbol for symbol in known.symbols]
    return list(known.words) if isinstance(known, WordTokenizer) else None


def check_size(symbols: Sequence[str], vocab_size: int, where: str) -> None:
    if len(symbols) != vocab_size:
        raise MnemoError(f"{where} has {len(symbols):,} symbols, the weights {vocab_size:,}: another vocabulary")
