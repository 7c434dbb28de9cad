from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.edited_files import edit_json, flip_bit

from mnemo.config import to_json
from mnemo.data import corpus as corpora
from mnemo.data.corpus import Corpus, IdWriter
from mnemo.data.known_corpora import CORPORA
from mnemo.data.prepare import load, prepare
from mnemo.data.streams import ContiguousStream, one_epoch
from mnemo.data.text_files import Accepted
from mnemo.data.tokenizers import ByteTokenizer, WordTokenizer
from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.checked_map import BLOCK_BYTES, block_sums

TEXT = b"".join(b"line %d of a book\n" % i for i in range(60)) + b"\0" + b"another book\n" * 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared corpus."""
    (tmp_path / "text.txt").write_bytes(TEXT)
    return prepare("books", tmp_path / "text.txt", root=tmp_path / "data").path


def edit_header(folder: Path, change: Any) -> None:
    edit_json(folder / "header.json", change)


def test_what_is_written_can_be_read(folder: Path) -> None:
    corpus = Corpus.open("books", root=folder.parent)
    assert corpus.name == "books" and corpus.tokenizer == ByteTokenizer() and corpus.path == folder
    splits = [corpus.split(name) for name in ("train", "valid", "test")]
    assert b"".join(split.ids.tobytes() for split in splits) == TEXT
    assert isinstance(splits[0].ids, np.memmap) and splits[0].ids.dtype == np.uint8
    assert splits[0].documents is not None and splits[0].documents.tolist() == [0, TEXT.index(0) + 1]
    assert splits[1].documents is None
    assert [split.num_bytes for split in splits] == [len(split.ids) for split in splits]
    text = TEXT.replace(b"\0", b" ").decode()
    assert sum(split.num_words for split in splits) == len(text.split())
    assert sum(split.num_lines for split in splits) == text.count("\n")
    corpus.verify()


def test_a_corpus_opens_by_name_or_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNEMO_DATA", str(folder.parent))
    assert Corpus.open("books").path == Corpus.open(folder).path == Corpus.open(str(folder)).path == folder
    assert load("books").fingerprint() == load(folder).fingerprint()
    assert [corpus.name for corpus in corpora.prepared()] == ["books"]


def test_the_header_has_a_version_and_checksums(folder: Path) -> None:
    header = json.loads((folder / "header.json").read_text())
    assert header["format_version"] == 1
    assert set(header) == {
        "format_version",
        "name",
        "source",
        "mismatches",
        "splits",
        "tokenizer",
        "checksums",
        "checksum",
    }
    assert all(len(split["sha256"]) == 64 for split in header["splits"].values())


def test_the_fingerprint_follows_the_text_and_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    first = Corpus.open(folder).fingerprint()
    (tmp_path / "text.txt").write_bytes(TEXT.replace(b"line 7", b"line 8"))
    assert prepare("books", tmp_path / "text.txt", root=folder.parent).fingerprint() != first
    (tmp_path / "text.txt").write_bytes(TEXT)
    assert prepare("others", tmp_path / "text.txt", root=folder.parent).fingerprint() == first
    assert prepare("books", tmp_path / "text.txt", "chars", root=folder.parent).fingerprint() != first


def test_unknown_split(folder: Path) -> None:
    with pytest.raises(MnemoError, match="unknown split of corpus 'books' 'tets'; did you mean 'test'"):
        Corpus.open(folder).split("tets")


DAMAGE: dict[str, tuple[Any, str]] = {
    "too few checksums": (
        lambda f: edit_header(f, lambda h: h["checksums"].pop("train.bin")),
        "its checksums do not fit the files",
    ),
    "changed header": (
        lambda f: (f / "header.json").write_text((f / "header.json").read_text().replace("books", "bocks")),
        "header.json does not match its checksum",
    ),
    "truncated ids": (lambda f: os.truncate(f / "train.bin", 100), "train.bin has 100 bytes, its header says"),
    "truncated documents": (lambda f: os.truncate(f / "train.documents.bin", 8), "documents.bin has 8 bytes"),
    "no ids": (lambda f: (f / "valid.bin").unlink(), "valid.bin is missing"),
    "no json": (lambda f: (f / "header.json").write_text("{"), "header.json is damaged or truncated: it is not JSON"),
    "not text": (
        lambda f: (f / "header.json").write_bytes(b"\xff\xfe"),
        "header.json is damaged or truncated: it is not UTF-8",
    ),
    "a list": (lambda f: (f / "header.json").write_text("[]"), "holds no JSON object"),
    "newer": (lambda f: edit_header(f, lambda h: h.update(format_version=9)), "format_version 9.*supports 1"),
    "no splits": (lambda f: edit_header(f, lambda h: h.pop("splits")), "header.json is damaged.*'splits'"),
    "bad field": (lambda f: edit_header(f, lambda h: h["splits"]["test"].update(cuont=1)), "did you mean 'count'"),
    "bad type": (lambda f: edit_header(f, lambda h: h["splits"]["test"].update(count="1")), "expected a whole number"),
    "wide ids": (lambda f: edit_header(f, lambda h: h["splits"]["test"].update(dtype="uint32")), "ids of type uint32"),
    "no tokenizer": (lambda f: edit_header(f, lambda h: h.update(tokenizer={})), "unknown tokenizer unit"),
    "elsewhere": (lambda f: edit_header(f, lambda h: h["splits"]["test"].update(file="../x.bin")), "missing"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_corpus_is_one_clear_error(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(MnemoError, match=message):
        Corpus.open(folder)
    assert corpora.prepared(folder.parent) == []


def test_ids_beyond_the_vocabulary_are_found_when_a_split_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n" * 50)
    folder = prepare("words", tmp_path / "a.txt", "words", root=tmp_path / "data").path
    ids = np.fromfile(folder / "train.bin", dtype=np.uint8)
    ids[17] = 9
    ids.tofile(folder / "train.bin")
    forged = {"train.bin": to_json(block_sums(folder / "train.bin"))}
    edit_header(folder, lambda header: header["checksums"].update(forged))
    with pytest.raises(MnemoError, match="train.bin: id 9 is beyond the vocabulary of 4"):
        Corpus.open(folder).split("train").ids[:5]
    edit_header(folder, lambda header: header.pop("checksums"))
    with pytest.raises(MnemoError, match="train.bin: id 9 is beyond the vocabulary of 4"):
        Corpus.open(folder).split("train")
    with pytest.raises(MnemoError, match="train.bin has changed since it was prepared"):
        Corpus.open(folder).verify()


def test_ids_are_verified_block_by_block_at_first_use(tmp_path: Path) -> None:
    """A damaged block is found when it is used, and does not disturb the use of others."""
    text = np.random.default_rng(0).integers(0, 256, 3 * BLOCK_BYTES, dtype=np.uint8).tobytes()
    (tmp_path / "text").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_bytes(text[: None if split == "train" else 5000])
    accepted = Accepted(binary=True)
    folder = prepare("noise", tmp_path / "text", root=tmp_path / "data", accepted=accepted).path
    flip_bit(folder / "train.bin", BLOCK_BYTES + 7)
    ids = Corpus.open(folder).split("train").ids
    assert ids[:BLOCK_BYTES].tobytes() == text[:BLOCK_BYTES]
    assert ids[2 * BLOCK_BYTES] == text[2 * BLOCK_BYTES] and ids[-1] == text[-1] and ids[5:3].size == 0
    place = f"bytes {BLOCK_BYTES:,} to {2 * BLOCK_BYTES:,}"
    for use in (
        lambda: ids[BLOCK_BYTES - 1 : BLOCK_BYTES + 1],
        lambda: ids[BLOCK_BYTES],
        lambda: ids[:],
        lambda: ids[::2],
        lambda: ids[[0]],
        lambda: list(one_epoch(ContiguousStream(ids, 1, BLOCK_BYTES // 2))),
        Corpus.open(folder).verify,
    ):
        with pytest.raises(MnemoError, match=rf"train.bin does not match its checksum: .* \({place}\): prepare"):
            use()


def test_damaged_documents_are_found(folder: Path) -> None:
    begins = np.fromfile(folder / "train.documents.bin", dtype=np.int64)
    (begins + [0, 1]).tofile(folder / "train.documents.bin")
    with pytest.raises(MnemoError, match="train.documents.bin does not match its checksum"):
        Corpus.open(folder).split("train")


def test_ids_beyond_the_vocabulary_are_not_written(tmp_path: Path) -> None:
    writer = IdWriter(tmp_path, "train", vocab_size=5)
    with pytest.raises(MnemoError, match="id 5 is beyond the vocabulary of 5"):
        writer.write(np.array([4, 5]))
    writer.close()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(3, np.uint8), (300, np.uint16), (70_000, np.uint32)])
def test_id_types(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    writer = IdWriter(tmp_path, "train", vocab_size)
    writer.write(np.array([0, vocab_size - 1]))
    splits = {"train": writer.finish(num_bytes=1, num_words=1, num_lines=1)}
    writer.close()
    tokenizer = WordTokenizer(tuple(map(str, range(vocab_size))), end=None)
    corpora.write_header(tmp_path, name="x", source="", tokenizer=tokenizer, splits=splits)
    ids = Corpus.open(tmp_path).split("train").ids
    assert ids.dtype == dtype and ids.tolist() == [0, vocab_size - 1]


def test_a_failed_preparation_keeps_the_old_corpus(folder: Path, tmp_path: Path) -> None:
    before = Corpus.open(folder).fingerprint()
    with pytest.raises(MnemoError), atomic.new_folder(folder, replace=True) as new:
        (new / "train.bin").write_bytes(b"half")
        raise MnemoError("disk full")
    assert Corpus.open(folder).fingerprint() == before
    assert [path.name for path in folder.parent.iterdir()] == ["books"]


def test_leftovers_of_killed_processes_go(folder: Path) -> None:
    stale, fresh = folder.parent / ".tmp-books.abc", folder.parent / ".tmp-books.xyz"
    for path in (stale, fresh):
        path.mkdir()
        (path / "train.bin").write_bytes(b"half")
    os.utime(stale, (0, 0))
    with atomic.new_folder(folder, replace=True) as new:
        (new / "header.json").write_text("{}")
    assert not stale.exists() and fresh.exists()


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MNEMO_DATA", str(tmp_path))
    assert corpora.data_root() == tmp_path
    assert corpora.data_root("here") == Path("here")
    monkeypatch.delenv("MNEMO_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setattr(sys, "platform", "linux")
    assert corpora.data_root() == Path("/caches/mnemo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert corpora.data_root() == Path.home() / ".cache" / "mnemo"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert corpora.data_root() == Path.home() / "Library" / "Caches" / "mnemo"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("enwik8", "; run: mnemo prepare enwik8$"),
        ("enwik8-bytes", "; run: mnemo prepare enwik8 --tokenizer bytes$"),
        ("novels-words", "; run: mnemo prepare novels --tokenizer words$"),
        ("wikitext2", r"\(did you mean 'wikitext-2'\?\); prepare your own text with: mnemo prepare wikitext2 --from"),
        ("diary", "prepare your own text with: mnemo prepare diary --from FILE_OR_DIR$"),
    ],
)
def test_a_missing_corpus_names_the_command_that_prepares_it(tmp_path: Path, name: str, command: str) -> None:
    with pytest.raises(MnemoError, match=f"corpus '{name}' is not prepared.*{command}"):
        load(name, root=tmp_path)
    with pytest.raises(MnemoError, match="is not the folder of a prepared corpus"):
        load(tmp_path / name)


def test_two_processes_may_prepare_the_same_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one puts its folder there between our two renames."""
    rename, renamed = Path.rename, []

    def racing(self: Path, target: Path) -> Path:
        renamed.append(self)
        if len(renamed) == 2:
            (tmp_path / "books").mkdir()
            (tmp_path / "books" / "theirs").touch()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", racing)
    with atomic.new_folder(tmp_path / "books", replace=True) as new:
        (new / "ours").touch()
    assert len(renamed) == 4
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["books", "books/ours"]


def test_every_named_corpus_is_complete() -> None:
    for name, known in CORPORA.items():
        checksums = [*known.checksums.values(), *(d.checksum for d in known.downloads if d.checksum)]
        lengths = {"md5": 32, "sha256": 64}
        assert all(len(text) == lengths[kind] for kind, _, text in (c.partition(":") for c in checksums)), name
        assert known.checksums.keys() <= known.files.keys() and known.num_bytes.keys() <= known.files.keys()
        assert all(url.startswith("http") for download in known.downloads for url in download.urls)
