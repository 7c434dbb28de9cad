"""Encoding a file piece by piece gives the tokens of the whole text."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnemo.data.encoded_pieces import encoded_pieces, text_encoded_by
from mnemo.data.tokenizers import AnyTokenizer, BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError

ALPHABET = "ab é\n\t.1"
SAMPLE = "a b  ab\nab a1 é.é\n\n a ab\tb.ab ab1 ba éa. " * 9
TOKENIZERS: list[AnyTokenizer] = [
    ByteTokenizer(),
    CharTokenizer(ALPHABET),
    WordTokenizer.train([SAMPLE], unknown="<unk>"),
    WordTokenizer.train([SAMPLE], unknown="<unk>", both_ends=True),
    BPETokenizer.train([SAMPLE], 290),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte", "char", "word", "lines", "bpe"])
@given(text=st.text(ALPHABET, max_size=200), piece=st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_pieces_are_the_whole(tokenizer: AnyTokenizer, text: str, piece: int, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(text, encoding="utf-8", newline="")
    found = list(encoded_pieces(path, tokenizer, piece))
    expected = tokenizer.encode(text)
    assert np.concatenate([*(each.ids for each in found), np.empty(0, np.int64)]).tolist() == expected.tolist()
    assert [each.num_bytes for each in found] == sorted({each.num_bytes for each in found})
    if found:
        assert found[-1].num_bytes == path.stat().st_size


@pytest.mark.thorough
def test_a_long_text_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"ab a\n" * (1 << 20) + b"b")
    for tokenizer in TOKENIZERS[:2]:
        tokenizer.encode("ab")  # characters have a table, which is made once
        tracemalloc.start()
        count = sum(len(piece.ids) for piece in encoded_pieces(path, tokenizer, 1 << 16))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == path.stat().st_size and peak < 40 << 16


def test_another_tokenizer(tmp_path: Path) -> None:
    """Any function that encodes text; it gets whole words with the spaces before them."""
    path = tmp_path / "text"
    path.write_text("one two three four", encoding="utf-8")
    pieces: list[str] = []
    list(text_encoded_by(path, lambda text: [pieces.append(text) or 1], 6))
    assert pieces == ["one", " two", " three", " four"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"ab ab ab a\xff", "the text is not UTF-8 at byte 10"),
        (b"ab ab ab a\xc3", "the text is not UTF-8 at byte 10"),
        (b"ab ab ab X", "the text after its first 8 bytes: character 'X' at position 1 is not in the vocabulary"),
    ],
)
def test_errors_name_the_place(data: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(MnemoError, match=expected):
        list(encoded_pieces(tmp_path / "text", CharTokenizer(ALPHABET), 6))
