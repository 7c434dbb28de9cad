"""Offsets of tokens in the text."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from mnemo.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError
from mnemo.hf import MnemoTokenizer

TEXT = "the cät sat, the cät sat"


def test_offsets_point_to_the_characters_of_each_token() -> None:
    bpe: Any = MnemoTokenizer.of(BPETokenizer.train([TEXT * 20], 270))
    encoded = bpe(TEXT, return_offsets_mapping=True)
    pieces = [TEXT[begin:end] for begin, end in encoded["offset_mapping"]]
    assert "".join(pieces) == TEXT and len(pieces) == len(encoded["input_ids"]) and max(map(len, pieces)) > 2
    chars: Any = MnemoTokenizer.of(CharTokenizer.train([TEXT]))
    assert chars("cät", return_offsets_mapping=True)["offset_mapping"] == [(0, 1), (1, 2), (2, 3)]
    bytes_: Any = MnemoTokenizer.of(ByteTokenizer())
    assert bytes_("cät", return_offsets_mapping=True)["offset_mapping"] == [(0, 1), (1, 2), (1, 2), (2, 3)]
    assert "offset_mapping" not in bytes_("cät")


def test_offsets_of_padded_and_cut_batches() -> None:
    tokenizer: Any = MnemoTokenizer.of(ByteTokenizer())
    found = tokenizer(["abc", "d"], padding=True, return_offsets_mapping=True, return_tensors="pt")
    assert found["offset_mapping"].tolist() == [[[0, 1], [1, 2], [2, 3]], [[0, 0], [0, 0], [0, 1]]]
    cut = tokenizer(["abc"], truncation=True, max_length=2, return_offsets_mapping=True)
    assert cut["offset_mapping"] == [[(0, 1), (1, 2)]]


def test_tokens_without_offsets_are_refused() -> None:
    words: Any = MnemoTokenizer.of(WordTokenizer.train(["a b"]))
    with pytest.raises(MnemoError, match="tokenizer of words"):
        words("a b", return_offsets_mapping=True)
