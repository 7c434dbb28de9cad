"""The corpus `novels` from the collection's archive; its real size is compared when a user prepares it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from mnemo.data import find_texts
from mnemo.data.known_corpora import CORPORA, NOVELS, Download
from mnemo.data.novels import BOOKS
from mnemo.data.prepare import prepare
from mnemo.data.text_parts import BYTE_ORDER_MARK
from mnemo.errors import MnemoError

ARCHIVE = CORPORA[NOVELS].downloads[0]


def book_text(book: str) -> bytes:
    return f"{book}\n\nIt ended.\n".encode()


def write_archive(path: Path, left_out: frozenset[str] = frozenset()) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("novels-1/README.md", "100 novels")
        archive.writestr("novels-1/models/vectors.Rdata", b"\x1f\x8b not a text")
        archive.writestr("novels-1/corpus/Kipling_Kim_1901.txt", "in no split")
        for book in sorted({book for books in BOOKS.values() for book in books} - left_out, reverse=True):
            as_published = BYTE_ORDER_MARK + b"\r\n" + book_text(book).replace(b"\n", b"\r\n") + b"\r\n"
            archive.writestr(f"novels-1/corpus/{book}.txt", as_published)
    return path


def test_no_book_is_in_two_splits() -> None:
    assert {split: len(books) for split, books in BOOKS.items()} == {"train": 85, "valid": 5, "test": 5}
    assert len({book for books in BOOKS.values() for book in books}) == 95


def test_books_of_a_split_are_joined_in_order_with_plain_line_ends(tmp_path: Path) -> None:
    corpus = prepare(NOVELS, write_archive(tmp_path / "novels.zip"), root=tmp_path / "data")
    for split, books in BOOKS.items():
        assert corpus.split(split).ids.tobytes() == b"\0".join(map(book_text, sorted(books)))
    documents = corpus.split("train").documents
    assert documents is not None and len(documents) == 85
    assert any("the published one 67,993,391" in problem for problem in corpus.mismatches)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [NOVELS]


def test_an_unpacked_collection_is_the_same_corpus(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "novels.zip")
    with zipfile.ZipFile(archive) as members:
        members.extractall(tmp_path / "unpacked")
    one, other = (
        prepare(NOVELS, source, root=tmp_path / name) for name, source in (("a", archive), ("b", tmp_path / "unpacked"))
    )
    assert one.fingerprint() == other.fingerprint()


def test_missing_books_are_named(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "novels.zip", frozenset(BOOKS["valid"]))
    with pytest.raises(MnemoError, match="lacks Chesterton_Thursday_1908.txt, .*, Forster_View_1908.txt and 2 more$"):
        prepare(NOVELS, archive, root=tmp_path / "data")


@pytest.mark.parametrize("name", [None, "train.txt", "other.txt"])
def test_a_folder_without_the_texts_names_all_that_is_taken(name: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    if name is not None:
        (folder / name).write_bytes(b"a text")
    with pytest.raises(MnemoError, match=r"novels.valid.txt .*, and no books of the collection 100_english_novels"):
        prepare(NOVELS, folder, root=tmp_path / "data")


def test_the_collection_is_downloaded_at_a_fixed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(download: Download, folder: Path, show: Any) -> Path:
        assert download == ARCHIVE
        folder.mkdir(parents=True, exist_ok=True)
        return write_archive(folder / download.file)

    monkeypatch.setattr(find_texts, "fetch", fetch)
    corpus = prepare(NOVELS, root=tmp_path)
    assert corpus.source == ARCHIVE.urls[0]
    assert corpus.split("test").ids.tobytes().startswith(b"Burnett_Garden_1911\n")
