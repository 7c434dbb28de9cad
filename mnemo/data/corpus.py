"""A prepared corpus: a folder with header.json and one memory-mapped file of ids per split.

    NAME/header.json            tokenizer, sizes, checksums of the files and of each megabyte of ids
    NAME/train.bin              ids, little-endian, 1, 2 or 4 bytes each
    NAME/train.documents.bin    index of the first token of each document (int64), if the text has documents

Opening a corpus checks the header and the file sizes. Ids are verified when they are used for the first time, one
megabyte at a time. Corpora of earlier versions have no checksums of parts, and are verified by `Corpus.verify` only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mnemo.config import from_json, to_json
from mnemo.data import tokenizers
from mnemo.data.known_corpora import missing
from mnemo.data.text_statistics import id_dtype
from mnemo.errors import MnemoError, shorten, unknown
from mnemo.files import atomic, checksum
from mnemo.files.checked_map import Accept, BlockGuard, BlockSums, CheckedMap, accept_all, block_sums
from mnemo.files.json_file import load_json, write_json
from mnemo.files.lock import taking_turns
from mnemo.files.safe_load import is_count, is_inside, require
from mnemo.progress import Advance, silent

HEADER = "header.json"
SPLITS = ("train", "valid", "test")
DOCUMENT_DTYPE = np.dtype("<i8")
_BLOCK = 1 << 24


def data_root(root: Path | str | None = None) -> Path:
    """Return the folder of prepared corpora: `root`, else $MNEMO_DATA, else `mnemo` in the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("MNEMO_DATA"):
        return Path(os.environ["MNEMO_DATA"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mnemo"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "mnemo"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemo"


@dataclass(frozen=True, kw_only=True)
class DocumentsHeader:
    file: str
    count: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SplitHeader:
    file: str
    dtype: str
    count: int
    """Number of ids."""
    sha256: str
    num_bytes: int
    """Bytes of the original text, the denominator of bits per byte."""
    num_words: int
    """Words separated by white space; with lines, the denominator of word-level perplexity."""
    num_lines: int
    documents: DocumentsHeader | None = None


@dataclass(frozen=True)
class Split:
    """Token ids of a part of a corpus (train, valid or test) and the counts of its text."""

    name: str
    """train, valid or test."""
    ids: np.ndarray
    """(T,) token ids, mapped from the file."""
    documents: np.ndarray | None
    """Index of the first token of each document, or None for text without documents."""
    num_bytes: int
    """Bytes of the text."""
    num_words: int
    """Words of the text, separated by white space."""
    num_lines: int
    """Lines of the text."""


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus: token ids of its splits on disk, and its tokenizer."""

    path: Path
    """Folder of the corpus."""
    name: str
    """Name that recipes refer to."""
    tokenizer: tokenizers.AnyTokenizer
    """Tokenizer that has made the ids."""
    splits: dict[str, SplitHeader]
    """Sizes of the splits by name."""
    source: str
    """Address or path that the text came from."""
    mismatches: tuple[str, ...] = ()
    """Differences from the published corpus of this name."""
    checksums: dict[str, BlockSums] = field(default_factory=dict)
    """Of the blocks of each file; empty for corpora of earlier versions."""

    @classmethod
    def open(cls, name_or_path: str | Path, root: Path | str | None = None) -> Corpus:
        """Open a prepared corpus by name, or by the path of its folder."""
        path = find(name_or_path, root)
        if path is None:
            raise missing(str(name_or_path))
        return _load(path)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def split(self, name: str) -> Split:
        """Return the ids of one split, memory-mapped; slices of them are verified at first use."""
        if name not in self.splits:
            raise unknown(f"split of corpus '{self.name}'", name, self.splits)
        header = self.splits[name]
        ids = self._map(header.file, header.dtype, self._require_known)
        if not self.checksums:
            checksum.note_unchecked(self.path, "corpus")
            for begin in range(0, len(ids), _BLOCK):
                self._require_known(self.path / header.file, np.asarray(ids[begin : begin + _BLOCK]))
        documents = None if header.documents is None else self._documents(header.documents, len(ids))
        return Split(name, ids, documents, header.num_bytes, header.num_words, header.num_lines)

    def _map(self, file: str, dtype: str | np.dtype, accept: Accept) -> np.memmap:
        items = np.memmap(self.path / file, dtype=dtype, mode="r")
        guard = self._guard(file, items, accept)
        return items if guard is None else CheckedMap.of(items, guard)

    def _guard(self, file: str, items: np.ndarray, accept: Accept) -> BlockGuard | None:
        sums, path = self.checksums.get(file), self.path / file
        return None if sums is None else BlockGuard(path, np.asarray(items), sums, accept)

    def _require_known(self, path: Path, ids: np.ndarray) -> None:
        largest = int(ids.max())
        if largest >= self.vocab_size:
            raise MnemoError(f"{path}: id {largest} is beyond the vocabulary of {self.vocab_size}")

    def _documents(self, header: DocumentsHeader, count: int) -> np.ndarray:
        documents = np.array(self._map(header.file, DOCUMENT_DTYPE, accept_all)[:])
        if documents[0] < 0 or documents[-1] >= count or (np.diff(documents) <= 0).any():
            raise MnemoError(f"{self.path / header.file} is damaged: documents are not in order")
        return documents

    def fingerprint(self) -> str:
        """Return a hash of the ids and the vocabulary, which identifies the text that a run was trained on."""
        parts = {name: [split.sha256, split.count] for name, split in self.splits.items()}
        text = json.dumps([parts, self.tokenizer.to_json()], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def verify(self) -> None:
        """Raise MnemoError if the content of a file is not the one that was prepared."""
        with silent("") as bar:
            for problem in self.problems(bar):
                raise MnemoError(problem)

    def problems(self, bar: Advance) -> list[str]:
        """Verify the content of every file; return what is wrong."""
        found = []
        for part in self._parts():
            dtype = part.dtype if isinstance(part, SplitHeader) else DOCUMENT_DTYPE
            accept = self._require_known if isinstance(part, SplitHeader) else accept_all
            guard = self._guard(part.file, np.memmap(self.path / part.file, dtype=dtype, mode="r"), accept)
            found += _compare_sha256(self.path / part.file, part.sha256, bar) if guard is None else guard.damaged(bar)
        return found

    def files(self) -> list[Path]:
        """All files but the header."""
        return [self.path / part.file for part in self._parts()]

    def _parts(self) -> list[SplitHeader | DocumentsHeader]:
        return [part for split in self.splits.values() for part in (split, split.documents) if part is not None]


def _compare_sha256(path: Path, expected: str, bar: Advance) -> list[str]:
    found = _sha256(path)
    bar.advance(path.stat().st_size)
    return [] if found == expected else [f"{path} has changed since it was prepared: prepare it again"]


def find(name_or_path: str | Path, root: Path | str | None = None) -> Path | None:
    """Return the folder of a prepared corpus, or None."""
    if not str(name_or_path):
        return None
    for path in (data_root(root) / name_or_path, Path(name_or_path).expanduser()):
        if (path / HEADER).is_file():
            return path
    return None


def open_or_remove(path: Path) -> Corpus | None:
    """Open a corpus; return None if there is none, or if it was damaged and is removed now.

    Processes take turns: one that finds a corpus damaged must not remove the whole one that another has made since.
    """
    if not path.exists():
        return None
    with taking_turns(path.parent):
        if not path.exists():
            return None
        try:
            return Corpus.open(path)
        except MnemoError:
            atomic.remove_folder(path)
            return None


def prepared(root: Path | str | None = None) -> list[Corpus]:
    """Return every valid corpus in the data folder, sorted by name."""
    folder = data_root(root)
    found = []
    for path in sorted(folder.glob(f"*/{HEADER}")) if folder.is_dir() else []:
        if not path.parent.name.startswith("."):
            try:
                found.append(_load(path.parent))
            except MnemoError:
                continue
    return found


def _load(path: Path) -> Corpus:
    header = _load_header(path / HEADER)
    try:
        splits = {
            name: from_json(SplitHeader, data, f"{path / HEADER}: splits.{name}")
            for name, data in header["splits"].items()
        }
        tokenizer = tokenizers.from_json(header["tokenizer"])
        where = f"{path / HEADER}: checksums"
        checksums = {file: from_json(BlockSums, sums, where) for file, sums in header.get("checksums", {}).items()}
        mismatches = tuple(header["mismatches"])
        corpus = Corpus(path, header["name"], tokenizer, splits, header["source"], mismatches, checksums)
    except (KeyError, TypeError, AttributeError) as error:
        raise MnemoError(f"{path / HEADER} is damaged ({error}): prepare the corpus again") from None
    for split in splits.values():
        _check_files(path, split, corpus.vocab_size)
    _check_checksums(corpus)
    return corpus


def _check_checksums(corpus: Corpus) -> None:
    """Require checksums of every block of every file, or none at all."""
    sizes = {path.name: path.stat().st_size for path in corpus.files()}
    sums = corpus.checksums
    if sums and (sums.keys() != sizes.keys() or not all(sums[name].fits(size) for name, size in sizes.items())):
        raise MnemoError(f"{corpus.path / HEADER} is damaged: its checksums do not fit the files")


def _load_header(path: Path) -> dict[str, Any]:
    header = load_json(path)
    name, splits, mismatches = (header.get(key) for key in ("name", "splits", "mismatches"))
    require(
        {
            "name": isinstance(name, str) and name.isprintable(),
            "source": isinstance(header.get("source"), str),
            "splits": isinstance(splits, dict) and bool(splits) and set(splits) <= set(SPLITS),
            "mismatches": isinstance(mismatches, list) and all(isinstance(item, str) for item in mismatches),
        },
        path,
    )
    return header


def _check_files(path: Path, split: SplitHeader, vocab_size: int) -> None:
    if split.dtype != id_dtype(vocab_size).name:
        kind = shorten(split.dtype)
        raise MnemoError(f"{path / HEADER} is damaged: ids of type {kind} for a vocabulary of {vocab_size}")
    require({name: is_count(getattr(split, name)) for name in ("num_bytes", "num_words", "num_lines")}, path / HEADER)
    _check_size(path, split.file, split.count, id_dtype(vocab_size).itemsize)
    if split.documents is not None:
        _check_size(path, split.documents.file, split.documents.count, DOCUMENT_DTYPE.itemsize)


def _check_size(folder: Path, name: str, count: int, itemsize: int) -> None:
    path = folder / name
    if not is_inside(folder, path) or not path.is_file():
        raise MnemoError(f"{folder / shorten(name)} is missing: prepare the corpus again")
    found = path.stat().st_size
    if count < 1 or found != count * itemsize:
        raise MnemoError(f"{path} has {found:,} bytes, its header says {count * itemsize:,}: prepare the corpus again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class IdWriter:
    """Writes the ids of one split, chunk by chunk, and records where documents begin."""

    def __init__(self, folder: Path, name: str, vocab_size: int) -> None:
        self._folder, self._name, self._vocab_size = folder, name, vocab_size
        self._dtype = id_dtype(vocab_size)
        self._file = (folder / f"{name}.bin").open("wb")
        self._sha = hashlib.sha256()
        self._documents: list[np.ndarray] = []
        self.count = 0

    def write(self, ids: np.ndarray) -> None:
        if len(ids) and int(ids.max()) >= self._vocab_size:
            raise MnemoError(f"{self._name}: id {int(ids.max())} is beyond the vocabulary of {self._vocab_size}")
        data = np.ascontiguousarray(ids, dtype=self._dtype).data
        self._file.write(data)
        self._sha.update(data)
        self.count += len(ids)

    def begin_documents(self, offsets: np.ndarray) -> None:
        """Record documents that begin at these offsets after the ids written so far."""
        self._documents.append(offsets + self.count)

    def close(self) -> None:
        self._file.close()

    def finish(self, *, num_bytes: int, num_words: int, num_lines: int) -> SplitHeader:
        self._file.flush()
        return SplitHeader(
            file=f"{self._name}.bin",
            dtype=self._dtype.name,
            count=self.count,
            sha256=self._sha.hexdigest(),
            num_bytes=num_bytes,
            num_words=num_words,
            num_lines=num_lines,
            documents=self._write_documents(),
        )

    def _write_documents(self) -> DocumentsHeader | None:
        begins = np.unique(np.concatenate([*self._documents, np.zeros(1, dtype=np.int64)]))
        begins = begins[begins < self.count].astype(DOCUMENT_DTYPE)
        if len(begins) < 2:
            return None
        path = self._folder / f"{self._name}.documents.bin"
        path.write_bytes(begins.data)
        return DocumentsHeader(file=path.name, count=len(begins), sha256=_sha256(path))


def write_header(
    folder: Path,
    *,
    name: str,
    source: str,
    tokenizer: tokenizers.AnyTokenizer,
    splits: dict[str, SplitHeader],
    mismatches: tuple[str, ...] = (),
) -> None:
    header = {
        "name": name,
        "source": source,
        "mismatches": list(mismatches),
        "splits": {key: to_json(split) for key, split in splits.items()},
        "checksums": {path.name: to_json(block_sums(path)) for path in sorted(folder.glob("*.bin"))},
        "tokenizer": tokenizer.to_json(),
    }
    write_json(folder / HEADER, header)
