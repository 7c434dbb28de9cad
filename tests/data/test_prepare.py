from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnemo.data import corpus as corpora
from mnemo.data import find_texts, known_corpora, text_files, text_parts
from mnemo.data.corpus import Corpus
from mnemo.data.known_corpora import CORPORA, Download, Expected
from mnemo.data.own_text import opened_text
from mnemo.data.prepare import load, prepare
from mnemo.data.text_files import Accepted, TextFiles
from mnemo.data.tokenizers import ByteTokenizer, CharTokenizer, WordTokenizer
from mnemo.errors import MnemoError
from mnemo.files import atomic, lock

SPLITS = {"train": b"the cat\n\nthe dog\n", "valid": b"a cat\n", "test": b"the end\n"}


def redefine(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Make a small text the published one."""
    monkeypatch.setitem(known_corpora.CORPORA, name, replace(CORPORA[name], **changes))


def ids(corpus: Corpus, split: str = "train") -> list[int]:
    return corpus.split(split).ids.tolist()


def write_splits(folder: Path, pattern: str, texts: dict[str, bytes] = SPLITS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        (folder / pattern.format(split)).write_bytes(text)
    return folder


def joined(corpus: Corpus) -> bytes:
    return b"".join(corpus.split(name).ids.tobytes() for name in corpus.splits)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_file_is_split_in_order_at_line_ends(tmp_path: Path, root: Path) -> None:
    text = b"".join(b"%03d is a line\n" % i for i in range(200))
    (tmp_path / "a.txt").write_bytes(text)
    corpus = prepare("mine", tmp_path / "a.txt", root=root)
    parts = [corpus.split(name).ids.tobytes() for name in ("train", "valid", "test")]
    assert b"".join(parts) == text and all(part.endswith(b"\n") for part in parts)
    assert [len(part) / len(text) for part in parts] == pytest.approx([0.90, 0.05, 0.05], abs=0.01)


@pytest.mark.parametrize("unit", ["é", " a"])
def test_a_text_without_lines_is_cut_between_characters_or_words(tmp_path: Path, root: Path, unit: str) -> None:
    (tmp_path / "a.txt").write_text(unit * 500, encoding="utf-8")
    corpus = prepare("mine", tmp_path / "a.txt", "chars", root=root)
    texts = [corpus.tokenizer.decode(ids(corpus, name)) for name in corpus.splits]
    assert "".join(texts) == unit * 500
    assert all(text.endswith(unit) for text in texts)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "gz": gzip.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("kind", [*COMPRESSORS, "zip", "tar.gz", "tgz", "plain"])
def test_compressed_texts_are_the_same_texts(tmp_path: Path, root: Path, kind: str) -> None:
    source = tmp_path / f"file.{kind}"
    folder = write_splits(tmp_path / "plain", "{}.txt")
    if kind == "plain":
        source = folder
    elif kind == "zip":
        with zipfile.ZipFile(source, "w") as archive:
            archive.mkdir("inner")
            archive.writestr("__MACOSX/inner/._train.txt", b"junk")
            for split, text in SPLITS.items():
                archive.writestr(f"inner/{split}.txt", text)
    elif kind in ("tar.gz", "tgz"):
        with tarfile.open(source, "w:gz") as archive:
            archive.add(folder, "inner")
    else:
        source = tmp_path / "packed"
        source.mkdir()
        for split, text in SPLITS.items():
            (source / f"{split}.txt.{kind}").write_bytes(COMPRESSORS[kind](text))
    assert joined(prepare("mine", source, root=root)) == b"".join(SPLITS.values())
    assert [path.name for path in root.iterdir()] == ["mine"]


@pytest.mark.parametrize("kind", [*COMPRESSORS, "zip", "tar.gz"])
def test_damaged_archives_are_one_clear_error(tmp_path: Path, root: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    data = COMPRESSORS.get(kind, gzip.compress)(bytes(range(256)) * 99)
    path.write_bytes(b"PK\x03\x04 not a zip" if kind == "zip" else data[: len(data) // 2])
    with pytest.raises(MnemoError, match=f"cannot (read|unpack) .*a.{kind}: "):
        prepare("mine", path, root=root)
    assert not (root / "mine").exists()


def test_a_tar_cannot_write_outside_its_folder(tmp_path: Path, root: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(write_splits(tmp_path / "plain", "{}.txt") / "train.txt", "../../evil.txt")
    with pytest.raises(MnemoError, match="cannot unpack .*a.tar"):
        prepare("mine", tmp_path / "a.tar", root=root)
    assert not list(tmp_path.rglob("evil.txt"))


def test_folders_named_after_splits(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "test-corpus"
    for split, text in SPLITS.items():
        write_splits(source / {"valid": "validation"}.get(split, split), "b.txt", {split: text})
        write_splits(source / {"valid": "validation"}.get(split, split), "a.txt", {split: b"first\n"})
    (source / "README.md").write_text("not part of it")
    corpus = prepare("mine", source, root=root)
    assert corpus.split("train").ids.tobytes() == b"first\n\0" + SPLITS["train"]
    documents = corpus.split("valid").documents
    assert documents is not None and documents.tolist() == [0, 7]


def test_a_folder_without_split_names_is_joined_in_order(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "notes"
    for i, name in enumerate(["b/x.txt", "a.txt", "b/y.md", ".hidden", ".git/config"]):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d\n" % i * 40)
    corpus = prepare("mine", source, root=root)
    train = corpus.split("train")
    assert train.ids.tobytes().startswith(b"1\n" * 40 + b"\0" + b"0\n" * 40 + b"\0" + b"2\n" * 10)
    assert train.documents is not None and train.documents.tolist() == [0, 81, 162]


def test_train_and_test_without_valid(tmp_path: Path, root: Path) -> None:
    source = write_splits(tmp_path / "x", "{}.txt", {"train": b"aa\n", "test": b"bb\n"})
    with pytest.raises(MnemoError, match="none named valid"):
        prepare("mine", source, root=root)


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"", "is empty: there is no text"), (b"ab", "too short: its train split has 1 token and needs 2")],
)
def test_empty_and_short_texts(tmp_path: Path, root: Path, text: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    with pytest.raises(MnemoError, match=message):
        prepare("mine", tmp_path / "a.txt", root=root)
    assert not root.exists() or list(root.iterdir()) == []


def test_an_empty_folder_and_a_missing_file(tmp_path: Path, root: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(MnemoError, match="nothing is empty"):
        prepare("mine", tmp_path / "nothing", root=root)
    with pytest.raises(MnemoError, match="gone.txt does not exist"):
        prepare("mine", tmp_path / "gone.txt", root=root)


@pytest.mark.parametrize("tokenizer", ["char", "byte", "foo"])
def test_an_unknown_tokenizer_is_refused(tmp_path: Path, root: Path, tokenizer: Any) -> None:
    (tmp_path / "a.txt").write_text("good line\n" * 300)
    with pytest.raises(MnemoError, match=f"unknown tokenizer '{tokenizer}'"):
        prepare("mine", tmp_path / "a.txt", tokenizer, root=root)


@pytest.mark.parametrize("tokenizer", ["chars", "words", "bpe"])
def test_undecodable_text_names_file_and_offset(tmp_path: Path, root: Path, tokenizer: Any) -> None:
    text = b"good line\n" * 300 + b"caf\xe9 au lait\n" + b"good line\n" * 300
    (tmp_path / "a.txt").write_bytes(text)
    with pytest.raises(MnemoError, match=r"not UTF-8 text: .*a.txt \(byte 0xe9 at offset 3,003\); --encoding"):
        prepare("mine", tmp_path / "a.txt", tokenizer, root=root)
    assert joined(prepare("mine", tmp_path / "a.txt", "bytes", root=root, accepted=Accepted(binary=True))) == text
    converted = prepare("mine", tmp_path / "a.txt", "chars", root=root, accepted=Accepted(encoding="latin-1"))
    assert "".join(converted.tokenizer.decode(ids(converted, name)) for name in converted.splits) == text.decode(
        "latin-1"
    )


def test_offsets_hold_in_later_pieces(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_PIECE", 64)
    text = b"\xef\xbb\xbf" + "gööd line\n".encode() * 97 + b"bad \xff\n"
    (tmp_path / "a.txt").write_bytes(text)
    with pytest.raises(MnemoError, match=rf"byte 0xff at offset {text.index(0xFF, 3):,}\)"):
        prepare("mine", tmp_path / "a.txt", "chars", root=root)


RANDOM = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()


def mixed_folder(folder: Path) -> Path:
    """A folder with two texts, one of them compressed, and everything that is not text."""
    for name, data in {
        "a.txt": b"a line of text\n" * 60,
        "b.txt.gz": gzip.compress("ein Wörtchen\n".encode() * 60),
        "noise.bin": RANDOM,
        "numbers": np.arange(1000, dtype=np.int32).tobytes(),
        "empty.txt": b"",
        ".secret": b"hidden\n" * 50,
        ".git/config": b"hidden\n" * 50,
        "runs/x/recipe.json": b"{}",
        "runs/x/metrics.jsonl": b"{}\n" * 50,
        "runs/x/notes.txt": b"part of a run\n",
        "corpus/header.json": b"{}",
        "corpus/train.bin": b"text",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    os.mkfifo(folder / "pipe")
    return folder


def chosen_files(source: Path, root: Path, **accepted: Any) -> TextFiles:
    found: list[TextFiles] = []
    prepare("mine", source, root=root, accepted=Accepted(**accepted), found=found.append)
    return found[0]


def test_only_text_files_of_a_folder_are_chosen(tmp_path: Path, root: Path) -> None:
    files = chosen_files(mixed_folder(tmp_path / "mixed"), root)
    assert [(name, size) for name, _, size in files.chosen] == [("a.txt", 900), ("b.txt.gz", 840)]
    assert dict(files.skipped) == {
        "noise.bin": "binary",
        "numbers": "binary",
        "empty.txt": "empty",
        ".secret": "hidden",
        ".git": "hidden",
        "runs/x": "run",
        "corpus": "corpus",
        "pipe": "not a regular file",
    }
    assert files.skipped_by_reason().startswith("2 binary (noise.bin, numbers), 1 corpus (corpus), 1 empty (empty.txt)")
    assert b"part of a run" not in joined(Corpus.open("mine", root))


def test_binary_files_of_a_folder_on_request(tmp_path: Path, root: Path) -> None:
    files = chosen_files(mixed_folder(tmp_path / "mixed"), root, binary=True)
    assert [name for name, _, _ in files.chosen] == ["a.txt", "b.txt.gz", "noise.bin", "numbers"]
    with pytest.raises(MnemoError, match="--binary needs --tokenizer bytes"):
        prepare("mine", tmp_path / "mixed", "chars", root=root, accepted=Accepted(binary=True))


def test_a_single_binary_file_is_refused(tmp_path: Path, root: Path) -> None:
    (tmp_path / "noise.txt").write_bytes(RANDOM)
    with pytest.raises(MnemoError, match="noise.txt is binary data, not text: --binary takes its bytes"):
        prepare("mine", tmp_path / "noise.txt", root=root)
    assert joined(prepare("mine", tmp_path / "noise.txt", root=root, accepted=Accepted(binary=True))) == RANDOM


def test_text_in_other_encodings_needs_a_word(tmp_path: Path, root: Path) -> None:
    folder = mixed_folder(tmp_path / "mixed")
    (folder / "c.txt").write_bytes("ein Wörtchen\n".encode("latin-1") * 60)
    with pytest.raises(MnemoError, match=r"c.txt \(byte 0xf6 at offset 5\); --encoding .*--encoding skip.*--binary"):
        prepare("mine", folder, root=root)
    files = chosen_files(folder, root, encoding="latin-1")
    assert [(name, size) for name, _, size in files.chosen][2:] == [("c.txt", 840)]
    assert ("c.txt", "not UTF-8") in chosen_files(folder, root, encoding="skip").skipped
    with pytest.raises(MnemoError, match="unknown encoding 'latin-99'"):
        Accepted(encoding="latin-99")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_file_in_utf_16(tmp_path: Path, root: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes(("ein Wörtchen\n" * 60).encode(encoding))
    corpus = prepare("mine", tmp_path / "a.txt", root=root, accepted=Accepted(encoding=encoding))
    assert joined(corpus) == ("ein Wörtchen\n" * 60).encode()
    with pytest.raises(MnemoError, match="not UTF-8 text|is binary data"):
        prepare("mine", tmp_path / "a.txt", root=root)


def test_links_are_not_followed_out_of_a_folder(tmp_path: Path, root: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    for path in (outside / "passwords.txt", folder / "a.txt", folder / ".kept" / "b.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some lines\n" * 50)
    (folder / "link.txt").symlink_to(outside / "passwords.txt")
    (folder / "linked").symlink_to(outside)
    (folder / "twin.txt").symlink_to("a.txt")
    (folder / "b.txt").symlink_to(".kept/b.txt")
    files = chosen_files(folder, root)
    assert [name for name, _, _ in files.chosen] == ["a.txt", "b.txt"]
    assert {("link.txt", "link"), ("linked", "link")} <= set(files.skipped)


def test_links_of_published_corpora_stay_inside_too(tmp_path: Path, root: Path, small_ptb: None) -> None:
    source = write_splits(tmp_path / "x", "ptb.{}.txt")
    (tmp_path / "elsewhere.txt").write_bytes(SPLITS["valid"])
    (source / "ptb.valid.txt").unlink()
    (source / "ptb.valid.txt").symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(MnemoError, match="no file for valid"):
        prepare("ptb", source, root=root)


def test_a_folder_that_is_no_text_says_so(tmp_path: Path, root: Path) -> None:
    folder = mixed_folder(tmp_path / "mixed")
    with pytest.raises(MnemoError, match="runs/x is a run, not a text"):
        prepare("mine", folder / "runs" / "x", root=root)
    (folder / "a.txt").unlink()
    (folder / "b.txt.gz").unlink()
    with pytest.raises(MnemoError, match=r"mixed has no text files; skipped: 2 binary \(noise.bin, numbers\), 1 c"):
        prepare("mine", folder, root=root)


def test_a_byte_order_mark_is_not_text(tmp_path: Path, root: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"ab\n" * 99)
    assert set(prepare("mine", tmp_path / "a.txt", "chars", root=root).tokenizer.symbols) == set("ab\n")  # type: ignore[union-attr]


def with_documents(folder: Path, newline: str) -> Path:
    train = f"one two\n\nthree é four{newline}\0five six\nseven{newline}\0\0eight nine ten{newline}"
    return write_splits(folder, "{}.txt", {"train": train.encode(), "valid": b"one ten\n", "test": b"two\n"})


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "words", "bpe"])
@pytest.mark.parametrize("newline", ["\n", ""])
def test_nul_ends_a_document(tmp_path: Path, root: Path, tokenizer: Any, newline: str) -> None:
    size = 300 if tokenizer == "bpe" else None
    corpus = prepare("mine", with_documents(tmp_path / "x", newline), tokenizer, vocab_size=size, root=root)
    split = corpus.split("train")
    assert split.documents is not None and split.num_words == 11
    found = [corpus.tokenizer.decode(piece) for piece in np.split(split.ids, split.documents[1:])]
    if tokenizer == "words":
        assert found == ["one two\n\nthree é four\n", "five six\nseven\n", "eight nine ten\n"]
    else:
        texts = [f"one two\n\nthree é four{newline}\0", f"five six\nseven{newline}\0", "\0"]
        assert found == [*texts, f"eight nine ten{newline}"]
    assert corpus.split("valid").documents is None


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "words"])
@pytest.mark.parametrize("newline", ["\n", ""])
def test_small_chunks_change_nothing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any, newline: str
) -> None:
    whole = prepare("mine", with_documents(tmp_path / "x", newline), tokenizer, root=root).fingerprint()
    monkeypatch.setattr(text_parts, "CHUNK", 8)
    assert prepare("mine", tmp_path / "x", tokenizer, root=root).fingerprint() == whole


def test_words_of_ones_own_text(tmp_path: Path, root: Path) -> None:
    corpus = prepare("mine", write_splits(tmp_path / "x", "{}.txt"), "words", root=root)
    assert isinstance(corpus.tokenizer, WordTokenizer)
    assert corpus.tokenizer.words == ("<eos>", "<unk>", "the", "cat", "dog")  # counted on train
    assert ids(corpus) == [2, 3, 0, 0, 2, 4, 0] and ids(corpus, "valid") == [1, 3, 0]
    small = prepare("mine", tmp_path / "x", "words", vocab_size=3, root=root)
    assert ids(small) == [2, 1, 0, 0, 2, 1, 0]


def test_published_enwik8_has_no_newlines(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"<a>\nbb\nccc\n" * 40
    sizes = [len(part.replace(b"\n", b"")) for part in (text[:396], text[396:418], text[418:])]
    redefine(
        monkeypatch,
        "enwik8",
        num_bytes={"all": 440},
        checksums={"all": "md5:" + hashlib.md5(text, usedforsecurity=False).hexdigest()},
        expected={
            "published": Expected((sizes[0], sizes[1], sizes[2]), 5),
            "bytes": Expected((396, 22, 22), 6),
        },
    )
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", text)
    corpus = prepare("enwik8", tmp_path, root=root)
    assert isinstance(corpus.tokenizer, ByteTokenizer)
    assert corpus.tokenizer.symbols == b"cb<a>" and corpus.mismatches == ()
    decoded = [corpus.tokenizer.decode(ids(corpus, name)).encode() for name in corpus.splits]
    assert b"".join(decoded) == text.replace(b"\n", b"")
    assert [split.num_bytes for split in corpus.splits.values()] == [396, 22, 22]
    whole = prepare("enwik8", tmp_path / "enwik8.zip", "bytes", root=root)
    assert whole.name == "enwik8-bytes" and whole.vocab_size == 6
    assert load("enwik8", root=root).vocab_size == 5


def test_published_text8_is_stripped(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b" anarchism" * 20
    redefine(monkeypatch, "text8", num_bytes={}, checksums={}, expected={"chars": Expected((179, 9, 9), 9)})
    (tmp_path / "text8").write_bytes(text)
    corpus = prepare("text8", tmp_path / "text8", root=root)
    assert isinstance(corpus.tokenizer, CharTokenizer) and corpus.tokenizer.symbols[0] == "a"
    assert corpus.tokenizer.decode(ids(corpus)) == text[:180].decode().strip()


@pytest.fixture
def small_ptb(monkeypatch: pytest.MonkeyPatch) -> None:
    redefine(
        monkeypatch,
        "ptb",
        num_bytes={split: len(text) for split, text in SPLITS.items()},
        checksums={split: "sha256:" + hashlib.sha256(text).hexdigest() for split, text in SPLITS.items()},
        expected={"words": Expected((7, 3, 3), 7)},
        downloads=(),
    )


@pytest.mark.parametrize("pattern", ["ptb.{}.txt", "{}.txt"])
def test_named_splits_are_found_by_their_usual_names(tmp_path: Path, root: Path, small_ptb: None, pattern: str) -> None:
    source = write_splits(tmp_path / "x", pattern)
    (source / "ptb.char.train.txt").write_text("another file")
    corpus = prepare("ptb", source, root=root)
    assert corpus.mismatches == () and corpus.name == "ptb" and isinstance(corpus.tokenizer, WordTokenizer)
    assert corpus.tokenizer.words == ("<eos>", "<unk>", "the", "cat", "dog", "a", "end")
    assert corpus.tokenizer.lower


def test_a_text_of_another_size_is_refused_with_both_numbers(tmp_path: Path, root: Path, small_ptb: None) -> None:
    source = write_splits(tmp_path / "x", "ptb.{}.txt", SPLITS | {"valid": b"a cat and more\n"})
    with pytest.raises(MnemoError, match="ptb valid: .* has 15 bytes, the published one 6 .*--allow-mismatch"):
        prepare("ptb", source, root=root)
    corpus = prepare("ptb", source, root=root, allow_mismatch=True)
    assert len(corpus.mismatches) == 3 and "ptb valid has 5 tokens, the published one 3" in corpus.mismatches
    assert "ptb has 9 different symbols, the published one 7" in corpus.mismatches
    assert Corpus.open(corpus.path).mismatches == corpus.mismatches


def test_a_text_of_another_checksum_is_refused_with_both(tmp_path: Path, root: Path, small_ptb: None) -> None:
    source = write_splits(tmp_path / "x", "ptb.{}.txt", SPLITS | {"valid": b"a dog\n"})
    with pytest.raises(MnemoError, match="ptb valid: .* has checksum sha256:.*, the published one sha256:"):
        prepare("ptb", source, root=root)


def test_a_missing_split_is_named(tmp_path: Path, root: Path) -> None:
    source = write_splits(tmp_path / "x", "wiki.{}.tokens", {"valid": b"a\n", "test": b"b\n"})
    with pytest.raises(MnemoError, match=r"wikitext-103: .* no file for train \(wiki.train.tokens or train.txt\)"):
        prepare("wikitext-103", source, root=root)


def test_lm1b_is_sentences_between_marks(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redefine(monkeypatch, "lm1b", num_lines={"train": 4})
    tree = tmp_path / "benchmark"
    train = tree / "training-monolingual.tokenized.shuffled"
    held_out = tree / "heldout-monolingual.tokenized.shuffled"
    write_splits(train, "news.en-{}-of-00100", {"00002": b"b a\n", "00001": b"a b\nc\n\n"})
    write_splits(held_out, "news.en.heldout-{}-of-00050", {"00000": b"a a\n", "00001": b"b\n"})
    (tree / "1b_word_vocab.txt").write_text("<S>\n</S>\n<UNK> 12\na 9\nb 7\n")
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tree, "benchmark")
    corpus = prepare("lm1b", tmp_path / "b.tar.gz", root=root)
    assert ids(corpus) == [0, 3, 4, 0, 0, 2, 0, 0, 0, 0, 4, 3, 0]
    sentences = corpus.split("train").documents
    assert sentences is not None and sentences.tolist() == [0, 4, 7, 9]
    assert ids(corpus, "valid") == ids(corpus, "test") == [0, 3, 3, 0]
    (tree / "1b_word_vocab.txt").unlink()
    with pytest.raises(MnemoError, match=r"no file for vocabulary \(1b_word_vocab.txt\)"):
        prepare("lm1b", tree, root=root)


def test_downloads_are_kept_apart_from_corpora(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, small_ptb: None
) -> None:
    downloads = tuple(Download(("http://example.invalid/",), f"ptb.{split}.txt") for split in SPLITS)
    redefine(monkeypatch, "ptb", downloads=downloads)
    fetched = []

    def fetch(download: Download, folder: Path, show: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        fetched.append(download.file)
        path = folder / download.file
        path.write_bytes(SPLITS[download.file.split(".")[1]])
        return path

    monkeypatch.setattr(find_texts, "fetch", fetch)
    corpus = prepare("ptb", root=root)
    assert fetched == ["ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"]
    assert corpus.source.startswith("http://example.invalid/")
    assert sorted(path.name for path in root.iterdir()) == ["downloads", "ptb"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "downloads", "a b"])
def test_bad_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="is not a valid corpus name"):
        prepare(name, tmp_path)


def test_arguments_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(MnemoError, match="can be set for words and bpe"):
        prepare("mine", tmp_path, vocab_size=100)
    with pytest.raises(MnemoError, match="vocabulary of 2 is too small"):
        prepare("mine", tmp_path, "words", vocab_size=2)
    with pytest.raises(MnemoError, match="no published tokenizer"):
        prepare("mine", tmp_path, "published")
    with pytest.raises(MnemoError, match="use another name for your text"):
        prepare("python", tmp_path)


def test_the_default_corpus_needs_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_texts, "PYTHON_LIMIT", 300_000)
    corpus = load("python", root=root)
    again = prepare("python", root=root / "other")
    assert corpus.fingerprint() == again.fingerprint()
    splits = [corpus.split(name) for name in ("train", "valid", "test")]
    total = sum(split.num_bytes for split in splits)
    assert 200_000 < total <= 300_000 + sum(len(s.documents) for s in splits if s.documents is not None)
    assert splits[0].num_bytes > 0.8 * total
    text = corpus.tokenizer.decode(splits[0].ids)
    assert "import " in text and "site-packages" not in corpus.source
    assert load("python", root=root).path == corpus.path


@pytest.mark.parametrize("damaged", [False, True], ids=["missing", "damaged"])
def test_runs_that_start_together_prepare_the_default_corpus_once(
    damaged: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that find none, or a damaged one, the slower keeps what the faster has made and reads."""
    monkeypatch.setattr(find_texts, "PYTHON_LIMIT", 300_000)
    if damaged:
        (load("python", root=root).path / corpora.HEADER).unlink()
    real, faster = corpora.write_header, []

    def write_header(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(corpora, "write_header", real)
        faster.append((load("python", root=root), (root / "python").stat().st_ino))
        real(*args, **options)

    monkeypatch.setattr(corpora, "write_header", write_header)
    slower = load("python", root=root)
    assert faster == [(slower, (root / "python").stat().st_ino)]
    assert len(ids(slower)) > 200_000


def test_a_default_corpus_without_header_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_texts, "PYTHON_LIMIT", 300_000)
    corpus = load("python", root=root)
    (corpus.path / corpora.HEADER).unlink()
    assert load("python", root=root).fingerprint() == corpus.fingerprint()


@pytest.mark.skipif(lock.fcntl is None, reason="no file locks here")
def test_a_whole_corpus_is_not_removed_by_a_process_that_found_a_damaged_one(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "book.txt").write_text("some lines\n" * 500)
    real, removed_whole = atomic.remove_folder, []
    with opened_text(tmp_path / "book.txt", Accepted(), root) as text:
        path = text.prepare().path
        (path / "train.bin").write_bytes(b"short")
        faster = threading.Thread(target=text.prepare)

        def remove_folder(folder: Path) -> None:
            monkeypatch.setattr(atomic, "remove_folder", real)
            faster.start()
            faster.join(0.5)  # long enough to make the corpus, unless it waits for its turn
            removed_whole.append(is_whole(folder))
            real(folder)

        monkeypatch.setattr(atomic, "remove_folder", remove_folder)
        text.prepare()
        faster.join()
    assert removed_whole == [False] and is_whole(path)


def is_whole(folder: Path) -> bool:
    try:
        Corpus.open(folder)
    except MnemoError:
        return False
    return True


def test_the_default_corpus_spreads_over_the_library() -> None:
    texts = find_texts.python_library()
    names = [part.path.as_posix() for parts in texts.splits.values() for part in parts]
    assert len(names) == len(set(names)) > 100
    assert not any(f"/{word}/" in name for name in names for word in ("site-packages", "test", "tests"))
    assert any("/asyncio/" in name for name in names) and any("/xml/" in name for name in names)
    assert 5e6 < sum(Path(name).stat().st_size for name in names) <= find_texts.PYTHON_LIMIT


def test_a_file_that_is_written_again_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in ("first", "second", "third!"):
        (tmp_path / "note.txt").write_text(content)
        assert text_parts.Part(tmp_path / "note.txt").load().tobytes() == content.encode()
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        Path("note.txt").write_text(folder)
        assert text_parts.Part(Path("note.txt")).load().tobytes() == folder.encode()
