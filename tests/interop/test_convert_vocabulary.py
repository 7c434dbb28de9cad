"""Vocabularies of published models, as tokenizers and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mnemo.data.tokenizers import ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError
from mnemo.interop.convert import vocabulary


@pytest.mark.parametrize(
    "content",
    [
        ["<eos>", "a", "b"],
        {"b": 2, "<eos>": 0, "a": 1},
        {"idx2sym": ["<eos>", "a", "b"], "sym2idx": {}},
        {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"b": 2, "<eos>": 0, "a": 1}}},
    ],
)
def test_vocabularies_in_json(content: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(content))
    assert vocabulary.load_symbols(tmp_path / "vocab.json") == ["<eos>", "a", "b"]


def test_vocabularies_in_lines(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("<S> 100\n<UNK> 7\nthe 5\n")
    symbols = vocabulary.load_symbols(tmp_path / "vocab.txt")
    assert vocabulary.tokenizer(symbols) == WordTokenizer(("<S>", "<UNK>", "the"), "<S>", True, "<UNK>")


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        (["32", "101", "116"], ByteTokenizer(b" et", b"\n")),
        (["_", "e", "t"], CharTokenizer(" et")),
        (["<eos>", "<unk>", "the"], WordTokenizer(("<eos>", "<unk>", "the"), unknown="<unk>")),
    ],
)
def test_symbols_tell_their_tokenizer_and_come_back(symbols: list[str], expected: Any) -> None:
    found = vocabulary.tokenizer(symbols)
    assert found == expected
    assert vocabulary.symbols_of(found) == symbols


@pytest.mark.parametrize("content", [{"a": 0, "b": 2}, {"a": "x"}, [1, 2], 7])
def test_other_json_is_no_vocabulary(content: Any, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(content))
    with pytest.raises(MnemoError, match="is not a vocabulary"):
        vocabulary.load_symbols(tmp_path / "vocab.json")
