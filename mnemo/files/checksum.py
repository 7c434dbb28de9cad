"""Checksums of the content of files, which show that a file is damaged or has been exchanged for another.

All of them are XXH3 with 128 bits, written as `xxh3_128:` and 32 hexadecimal digits. XXH3 is faster than any disk, and
finds accidents; it does not stop somebody who forges a file together with its checksum.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from mnemo.errors import MnemoError
from mnemo.progress import Advance

FIELD = "checksum"
"""Name of the checksum in JSON objects and in the metadata of safetensors files."""
PREFIX = "xxh3_128:"
BLANK = PREFIX + "0" * 32
"""Stands for the checksum of a file while that checksum is computed."""
CHANGED = "does not match its checksum: it is damaged or has been changed"
_CHUNK = 1 << 22
_SETTLED_SECONDS = 2.0
_known: dict[tuple[Any, ...], str] = {}
_noted: set[str] = set()


class Hasher:
    """The checksum of bytes that arrive piece by piece."""

    def __init__(self, first: bytes = b"") -> None:
        self._state = xxhash.xxh3_128(first)

    def update(self, data: Any) -> None:
        self._state.update(data)

    def rest_of(self, file: BinaryIO, length: int | None = None, bar: Advance | None = None) -> None:
        """Add the bytes from the file's position to its end, or `length` of them."""
        buffer = memoryview(bytearray(_CHUNK))
        while count := file.readinto(buffer[:length]):  # type: ignore[attr-defined]
            self.update(buffer[:count])
            length = None if length is None else length - count
            if bar is not None:
                bar.advance(count)

    def result(self) -> str:
        return PREFIX + self._state.hexdigest()


def of_bytes(data: Any) -> str:
    return Hasher(data).result()


def of_file(path: Path, length: int | None = None, bar: Advance | None = None) -> str:
    """The checksum of a file, or of its first `length` bytes."""
    hasher = Hasher()
    with path.open("rb", buffering=0) as file:
        hasher.rest_of(file, length, bar)
    return hasher.result()


def find(fields: Mapping[str, Any]) -> str | None:
    """The checksum among the fields of an object or the metadata of a file; None if there is none.

    A value with the form of a checksum counts under any name, because a damaged name must not hide it.
    """
    if FIELD in fields:
        return str(fields[FIELD])
    return next((value for value in fields.values() if isinstance(value, str) and value.startswith(PREFIX)), None)


def remembered(path: Path, compute: Any) -> str:
    """The result of `compute(path)`, computed once per process for a file that does not change in the meantime."""
    found = path.stat()
    key = (os.path.realpath(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if key in _known:
        return _known[key]
    checksum = compute(path)
    # A file changed a moment ago may change again without a new time, whose resolution is some milliseconds.
    if time.time() - max(found.st_mtime, found.st_ctime) > _SETTLED_SECONDS:
        _known[key] = checksum
    return checksum


def require(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise MnemoError(f"{path} {CHANGED}")


def note_unchecked(path: Path, kind: str) -> None:
    """Log once per process and kind of file that an old file has no checksum; of several ranks, only by the first."""
    if kind not in _noted and os.environ.get("RANK", "0") == "0":
        _noted.add(kind)
        why = "written by an earlier version"
        logging.getLogger("mnemo").warning(f"mnemo: note: {path} has no checksums ({why}): its content is not checked")
