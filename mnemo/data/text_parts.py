"""Parts of texts: byte ranges of files, of files in folders, and of members of archives."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mnemo.errors import MnemoError
from mnemo.files.safe_load import file_size

CHUNK = 1 << 22
CUT_WINDOW = 1 << 16
NEWLINE = ord("\n")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_ARCHIVE_ERRORS = (OSError, EOFError, ValueError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


@dataclass(frozen=True)
class Part:
    """The bytes of one file after unpacking, or the range [start, stop) of them."""

    path: Path
    member: str | None = None
    """Name inside a zip archive."""
    start: int = 0
    stop: int | None = None
    encoding: str | None = None
    """Encoding of the file if it is not UTF-8; all other fields are about its bytes as UTF-8."""

    @property
    def name(self) -> str:
        """The file name without folders and compression suffix."""
        name = Path(self.member).name if self.member else self.path.name
        return name.removesuffix(Path(name).suffix) if Path(name).suffix in _OPENERS else name

    @property
    def label(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    def load(self) -> np.ndarray:
        return _load(self.path, self.member, self.encoding, _version(self.path))[self.start : self.stop]

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield pieces of a few megabytes, cut at line ends, word ends or at least character ends."""
        data = self.load()
        begin = 0
        while begin < len(data):
            rest = len(data) - begin
            end = len(data) if rest <= 2 * CHUNK else _good_cut(data, begin + CHUNK, CHUNK)
            yield data[begin:end]
            begin = end

    def text(self) -> Iterator[tuple[np.ndarray, str]]:
        """Yield the same pieces with their text; an error names the first byte that is not UTF-8."""
        offset = self.start
        for chunk in self.chunks():
            if offset == 0 and chunk[:3].tobytes() == BYTE_ORDER_MARK:
                chunk, offset = chunk[3:], 3
            yield chunk, self._decode(chunk.tobytes(), offset)
            offset += len(chunk)

    def size(self) -> int | None:
        """Return the number of bytes, or None for compressed and converted files."""
        if self.stop is not None:
            return self.stop - self.start
        if self.member is not None or self.encoding is not None or self.path.suffix in _OPENERS:
            return None
        return self.path.stat().st_size - self.start

    def _decode(self, data: bytes, offset: int) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            at = offset + error.start
            raise MnemoError(
                f"{self.label} is not UTF-8 text: byte {data[error.start]:#04x} at offset {at:,} "
                "(--tokenizer bytes accepts any file)"
            ) from None


def _version(path: Path) -> tuple[int, ...]:
    """Numbers that change when another file is at the same path, or its content is written again."""
    try:
        found = path.stat()
    except OSError:  # loading it fails with a message
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=1)
def _load(path: Path, member: str | None, encoding: str | None, version: tuple[int, ...]) -> np.ndarray:
    """Return all bytes of a file, memory-mapped if it is not compressed. The cache holds one version of one file."""
    data = _load_bytes(path, member)
    if encoding is None:
        return data
    try:
        return np.frombuffer(data.tobytes().decode(encoding).encode("utf-8"), dtype=np.uint8)
    except UnicodeError as error:
        raise MnemoError(f"{path} is not {encoding} text: {error}") from None


def _load_bytes(path: Path, member: str | None) -> np.ndarray:
    file_size(path)
    try:
        if member is not None:
            with zipfile.ZipFile(path) as archive:
                return np.frombuffer(archive.read(member), dtype=np.uint8)
        if path.suffix in _OPENERS:
            with _OPENERS[path.suffix](path) as file:
                return np.frombuffer(file.read(), dtype=np.uint8)
        empty = path.stat().st_size == 0
        return np.empty(0, dtype=np.uint8) if empty else np.memmap(path, dtype=np.uint8, mode="r")
    except _ARCHIVE_ERRORS as error:
        raise MnemoError(f"cannot read {path}: {error}") from None


def release() -> None:
    """Release the file in the cache."""
    _load.cache_clear()


def _good_cut(data: np.ndarray, at: int, window: int) -> int:
    """Return the end of the line at `at` if it is within `window` bytes, else of the word, else of the character."""
    if at >= len(data):
        return len(data)
    near = data[at : at + window]
    for mark, after in ((NEWLINE, 1), (ord(" "), 0)):
        hits = np.flatnonzero(near == mark)
        if len(hits):
            return at + int(hits[0]) + after
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def is_hidden(parts: Sequence[str]) -> bool:
    """Whether a name in a path is hidden, or Apple's folder of attributes."""
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def zip_members(path: Path) -> list[str]:
    """Names of the files in a zip archive, sorted, without hidden ones."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(info.filename for info in archive.infolist() if not info.is_dir())
    except _ARCHIVE_ERRORS as error:
        raise MnemoError(f"cannot read {path}: {error}") from None
    return [name for name in names if not is_hidden(Path(name).parts)]


def is_tar(path: Path) -> bool:
    return path.is_file() and (path.suffix in (".tgz", ".tar") or ".tar" in path.suffixes[-2:])


def unpack_tar(path: Path, folder: Path) -> None:
    """Unpack an archive into a folder; members outside the folder are refused."""
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, *_ARCHIVE_ERRORS) as error:
        raise MnemoError(f"cannot unpack {path}: {error}") from None


def split_in_order(parts: Sequence[Part], shares: Sequence[float]) -> dict[str, tuple[Part, ...]]:
    """Split the text, in order, into train, valid and test at line ends."""
    sizes = [len(part.load()) for part in parts]
    edges = [0, *(_line_edge(parts, sizes, sum(shares[:i]) * sum(sizes)) for i in (1, 2)), sum(sizes)]
    return {
        name: _between(parts, sizes, begin, end)
        for name, begin, end in zip(("train", "valid", "test"), edges[:-1], edges[1:], strict=True)
    }


def split_at(part: Part, edges: Sequence[int]) -> dict[str, tuple[Part, ...]]:
    """Split one text at two exact positions."""
    size = len(part.load())
    bounds = [0, *edges, size]
    return {
        name: (replace(part, start=begin, stop=end),)
        for name, begin, end in zip(("train", "valid", "test"), bounds[:-1], bounds[1:], strict=True)
    }


def stripped(part: Part) -> Part:
    """Return the range without spaces and newlines at its ends."""
    data = part.load()
    text = np.flatnonzero((data != ord(" ")) & (data != NEWLINE))
    if not len(text):
        return replace(part, stop=part.start)
    return replace(part, start=part.start + int(text[0]), stop=part.start + int(text[-1]) + 1)


def _line_edge(parts: Sequence[Part], sizes: Sequence[int], position: float) -> int:
    begin, at = 0, int(position)
    for part, size in zip(parts, sizes, strict=True):
        if at < begin + size:
            window = min(CUT_WINDOW, size // 100 + 1)
            return begin + (_good_cut(part.load(), at - begin, window) if at > begin else 0)
        begin += size
    return begin


def _between(parts: Sequence[Part], sizes: Sequence[int], begin: int, end: int) -> tuple[Part, ...]:
    """Return the parts that cover positions [begin, end) of the concatenated text."""
    found, offset = [], 0
    for part, size in zip(parts, sizes, strict=True):
        low, high = max(begin - offset, 0), min(end - offset, size)
        if low < high:
            found.append(replace(part, start=low, stop=high))
        offset += size
    return tuple(found)
