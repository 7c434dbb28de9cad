from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemo.data import tokenizers
from mnemo.data.text_statistics import SymbolCounter, TextCounter, id_dtype
from mnemo.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError

WORDS = st.sampled_from(["the", "cat", "Cat", "dog", "<unk>", "<eos>", "ß", "\u3000", "=", "a\xa0b"])
LINES = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=8)


def published_vocabulary(lines: list[str], lower: bool) -> list[str]:
    """The published rule, word by word: specials first, then Counter.most_common."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update((line.strip().lower() if lower else line.strip()).split())
    words = ["<eos>"]
    for word, _ in counts.most_common():
        if word not in words:
            words.append(word)
    return words


@given(LINES, st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_words_follow_the_published_rule(lines: list[str], lower: bool, newline: str) -> None:
    text = "".join(line + newline for line in lines)
    tokenizer = WordTokenizer.train([text], lower=lower)
    vocabulary = published_vocabulary(lines, lower)
    assert list(tokenizer.words) == vocabulary
    expected = []
    for line in lines:
        expected += [vocabulary.index(word) for word in (line.lower() if lower else line).split()] + [0]
    assert tokenizer.encode(text).tolist() == expected


@given(st.binary(min_size=1, max_size=60), st.integers(1, 20))
def test_symbols_are_ranked_as_counter_does(data: bytes, chunk: int) -> None:
    codes = np.frombuffer(data, dtype=np.uint8)
    counter = SymbolCounter(256)
    for i in range(0, len(codes), chunk):
        counter.add(codes[i : i + chunk])
    assert counter.ranked() == [symbol for symbol, _ in Counter(data).most_common()]


@given(st.lists(st.sampled_from(["ab", "c", " ", "\n", "\t", "\0"]), max_size=40).map("".join), st.integers(1, 9))
def test_words_and_lines_are_counted_across_chunks(text: str, chunk: int) -> None:
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    counter = TextCounter()
    for i in range(0, len(data), chunk):
        counter.add(data[i : i + chunk])
    counter.finish()
    assert counter.num_bytes == len(data)
    assert counter.num_words == len(text.replace("\0", " ").split())
    lines = text.split("\n")
    assert counter.num_lines == len(lines) - (lines[-1] == "")


def test_an_open_line_gets_no_end() -> None:
    tokenizer = WordTokenizer(("<eos>", "a", "b"))
    assert tokenizer.encode("a b").tolist() == [1, 2]
    assert tokenizer.encode("a\n\n b").tolist() == [1, 0, 0, 2]
    assert tokenizer.encode("").tolist() == tokenizer.encode("  ").tolist() == []
    assert tokenizer.decode([1, 0, 0, 2, 1]) == "a\n\nb a"


def test_framed_sentences() -> None:
    tokenizer = WordTokenizer(("<S>", "a", "b", "<UNK>"), end="<S>", both_ends=True, unknown="<UNK>")
    ids, begins = tokenizer.encode_lines("a b\nb c\n")
    assert ids.tolist() == [0, 1, 2, 0, 0, 2, 3, 0] and begins.tolist() == [0, 4]
    assert tokenizer.encode("b a").tolist() == [0, 2, 1]
    assert tokenizer.decode(ids) == "a b\nb <UNK>\n"


def test_unknown_words_are_an_error_or_a_word() -> None:
    text = "a a b <unk> c\n"
    strict = WordTokenizer.train([text])
    with pytest.raises(MnemoError, match="the word 'zebra' is not in the vocabulary of 5 words"):
        strict.encode("a zebra")
    lenient = WordTokenizer.train([text], unknown="<unk>")
    assert lenient.words == ("<eos>", "a", "b", "<unk>", "c")
    assert lenient.encode("zebra c").tolist() == [3, 4]
    added = WordTokenizer.train(["a b\n"], unknown="<unk>")
    assert added.words == ("<eos>", "<unk>", "a", "b")


def test_a_limited_vocabulary_keeps_the_frequent_words_and_unknown() -> None:
    text = "a a a b b c <unk>\n"
    assert WordTokenizer.train([text], limit=3).words == ("<eos>", "a", "b")
    assert WordTokenizer.train([text], limit=3, unknown="<unk>").words == ("<eos>", "a", "<unk>")
    assert WordTokenizer.train(["a a b b c\n"], limit=3, unknown="<unk>").words == ("<eos>", "<unk>", "a")


def test_published_bytes_drop_newlines_and_sort_by_frequency() -> None:
    data = np.frombuffer(b"ab\nbc\n\nbb<\na", dtype=np.uint8)
    tokenizer = ByteTokenizer.train([data[:5], data[5:]], dropped=b"\n")
    assert tokenizer.symbols == b"bac<"
    assert tokenizer.encode(data.tobytes()).tolist() == [1, 0, 0, 2, 0, 0, 3, 1]
    assert tokenizer.decode([0, 1]) == "ba"
    with pytest.raises(MnemoError, match="byte 0x7a at offset 1 is not in the vocabulary of 4 bytes"):
        tokenizer.encode("az")


def test_raw_bytes_are_their_own_ids() -> None:
    tokenizer = ByteTokenizer()
    data = bytes(range(256))
    assert tokenizer.encode(data).tolist() == list(data) and tokenizer.vocab_size == 256
    assert tokenizer.encode("é").tolist() == [0xC3, 0xA9]


@settings(max_examples=40)
@given(st.text(max_size=20), st.integers(1, 5))
def test_streamed_bytes_equal_the_whole_text(text: str, step: int) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text.encode("utf-8", "ignore"))
    decoder = tokenizer.decoder()
    pieces = [decoder.feed(ids[i : i + step].tolist()) for i in range(0, len(ids), step)]
    assert "".join(pieces) + decoder.finish() == tokenizer.decode(ids) == text.encode("utf-8", "ignore").decode()
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_bytes_that_are_not_text_become_replacement_characters() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([0xFF, 0x61]) == "\ufffda"
    decoder = tokenizer.decoder()
    assert decoder.feed([0xC3]) == "" and decoder.finish() == "\ufffd"


@settings(max_examples=20)
@given(st.text(min_size=1, max_size=20))
def test_characters_round_trip(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(MnemoError, match="surrogate"):
            CharTokenizer.train([text])
        return
    tokenizer = CharTokenizer.train([text[:7], text[7:]])
    assert tokenizer.symbols == "".join(symbol for symbol, _ in Counter(text).most_common())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_characters_are_an_error_or_the_last_id() -> None:
    with pytest.raises(MnemoError, match="character 'x' at position 2 is not in the vocabulary of 2 characters"):
        CharTokenizer("ab").encode("abx")
    lenient = CharTokenizer("ab", unknown=True)
    assert lenient.vocab_size == 3 and lenient.encode("bx").tolist() == [1, 2]
    assert lenient.decode([1, 2]) == "b\ufffd"


def test_characters_of_undecodable_bytes_are_an_error() -> None:
    with pytest.raises(MnemoError, match="not UTF-8: byte 0xff at offset 1"):
        CharTokenizer("ab").encode(b"a\xff")


BPE_TEXT = "the cat sat on the mat ; the cats sat \n = the the = \n\n\n  naïve 漢字 café\n \n" * 30


def bpe() -> BPETokenizer:
    pytest.importorskip("tokenizers")
    return BPETokenizer.train([BPE_TEXT], vocab_size=280)


def test_bpe_is_the_librarys() -> None:
    import tokenizers as library

    tokenizer = bpe()
    text = BPE_TEXT[:900] + "\x00 unseen\U0001f600"
    ids = tokenizer.encode(text)
    assert tokenizer.vocab_size == 280 and len(ids) < len(text.encode())
    assert ids.tolist() == library.Tokenizer.from_str(tokenizer.model).encode(text).ids
    assert tokenizer.decode(ids) == text
    decoder = tokenizer.decoder()
    pieces = [decoder.feed([i]) for i in ids.tolist()]
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)


def test_bpe_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MnemoError, match=r"pip install '.\[bpe\]'"):
        BPETokenizer.train(["a"], vocab_size=300)
    with pytest.raises(MnemoError, match=r"pip install '.\[bpe\]'"):
        BPETokenizer("{}").encode("a")


def test_bpe_sizes_and_descriptions_are_checked() -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(MnemoError, match="at least 256"):
        BPETokenizer.train(["a"], vocab_size=100)
    with pytest.raises(MnemoError, match="not a tokenizer of the 'tokenizers' library"):
        BPETokenizer('{"a": 1}').encode("a")


EXAMPLES: list[Any] = [
    ByteTokenizer(),
    ByteTokenizer(b"ba", b"\n"),
    CharTokenizer("añ\0", unknown=True),
    WordTokenizer(("<S>", "é", "<UNK>"), end="<S>", both_ends=True, unknown="<UNK>", lower=True),
]


@pytest.mark.parametrize("tokenizer", EXAMPLES, ids=lambda t: f"{t.unit}{t.vocab_size}")
def test_json_round_trip(tokenizer: Any) -> None:
    again = tokenizers.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again == tokenizer and again.unit == tokenizer.unit


@pytest.mark.parametrize("text", [BPE_TEXT, "x" * 256, " " * 256, "word " * 1000, ""])
def test_bpe_is_trained_on_usual_text_as_it_is(text: str) -> None:
    assert list(tokenizers._with_short_runs(text)) == [text]


@pytest.mark.parametrize("text", ["x" * 1000, "a b " + "漢" * 700 + " c", "a" + " " * 600 + "b", "x" * 257])
def test_bpe_is_trained_on_short_runs(text: str) -> None:
    pieces = list(tokenizers._with_short_runs(text))
    assert "".join(pieces) == text and len(pieces) > 1 and all(pieces)
    longest = max(len(run) for piece in pieces for run in re.findall(r"\S+|\s+", piece))
    assert longest == tokenizers.LONGEST_BPE_RUN


def test_bpe_of_text_without_blanks_takes_bounded_time() -> None:
    """Seconds; the time for a single word of this length would grow faster than the square of its length."""
    pytest.importorskip("tokenizers")
    letters = np.random.default_rng(0).zipf(1.6, 400_000) % 3000 + 0x4E00
    text = "".join(map(chr, letters))
    began = time.process_time()
    tokenizer = BPETokenizer.train([text], vocab_size=8192)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert time.process_time() - began < 120


def test_bpe_json_round_trip() -> None:
    tokenizer = bpe()
    again = tokenizers.from_json(json.loads(json.dumps(tokenizer.to_json())))
    assert again.encode(BPE_TEXT).tolist() == tokenizer.encode(BPE_TEXT).tolist()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"unit": "bite"},
        {"unit": "byte"},
        {"unit": "byte", "symbols": [1, 256], "dropped": []},
        {"unit": "byte", "symbols": [1, 1], "dropped": []},
        {"unit": "byte", "symbols": [1, 2], "dropped": [2]},
        {"unit": "byte", "symbols": [], "dropped": []},
        {"unit": "char", "symbols": "aa", "unknown": False},
        {"unit": "char", "symbols": "ab", "unknown": 1},
        {"unit": "word", "words": ["a", 2], "end": None, "unknown": None, "both_ends": False, "lower": False},
        {"unit": "word", "words": ["a", "a"], "end": None, "unknown": None, "both_ends": False, "lower": False},
        {"unit": "word", "words": ["a"], "end": "<eos>", "unknown": None, "both_ends": False, "lower": False},
        {"unit": "word", "words": ["a"], "end": None, "unknown": None, "both_ends": False},
        {"unit": "bpe", "model": "text"},
    ],
)
def test_damaged_descriptions_are_one_clear_error(data: Any) -> None:
    with pytest.raises(MnemoError):
        tokenizers.from_json(data)


@pytest.mark.parametrize("tokenizer", EXAMPLES, ids=lambda t: f"{t.unit}{t.vocab_size}")
def test_ids_beyond_the_vocabulary_do_not_decode(tokenizer: Any) -> None:
    for bad in (tokenizer.vocab_size, -1):
        with pytest.raises(MnemoError, match=f"token id {bad} is beyond the vocabulary of {tokenizer.vocab_size}"):
            tokenizer.decode([0, bad])


def test_ids_take_the_smallest_type() -> None:
    sizes = [id_dtype(size).itemsize for size in (1, 256, 257, 65536, 65537)]
    assert sizes == [1, 1, 2, 2, 4]
