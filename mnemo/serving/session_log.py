"""The log of a session: one line per record, with a checksum, flushed to the disk before a request is answered.

A kill in the middle of an append leaves an incomplete last line. Its checksum does not match, so it is not a record:
loading ends before it, and the next append overwrites it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.files import checksum
from mnemo.files.safe_load import MAX_LINES_BYTES, open_own, parse_json, read_bytes
from mnemo.serving.session_data import Record
from mnemo.serving.session_errors import storage_errors


class LoadedLog(NamedTuple):
    records: list[Record]
    length: int
    """Bytes of the complete records."""
    damaged: int
    """Bytes after them."""


class SessionLog:
    """Appends records to a file; `length`: its bytes that are complete records."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = path, length

    def append(self, record: Record) -> None:
        """Write a record and flush it to the disk. After an error the log is as it was."""
        data = line_of(record)
        with storage_errors():
            handle = open_own(self.path)
            try:
                self._write(handle, data)
            finally:
                os.close(handle)
        self.length += len(data)

    def _write(self, handle: int, data: bytes) -> None:
        # Anything after the last record is an append that did not succeed.
        os.ftruncate(handle, self.length)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(handle, data[written:], self.length + written)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, self.length)
            raise


def line_of(record: Record) -> bytes:
    content = json.dumps(to_json(record), separators=(",", ":")).encode()
    return f"{checksum.of_bytes(content)} ".encode() + content + b"\n"


def load_log(path: Path) -> LoadedLog:
    """The records of a log up to the first line that is incomplete or damaged."""
    data = read_bytes(path, MAX_LINES_BYTES)
    records, length = [], 0
    while length < len(data):
        end = data.find(b"\n", length) + 1
        record = _parsed(data[length:end], path) if end else None
        if record is None:
            break
        records.append(record)
        length = end
    return LoadedLog(records, length, len(data) - length)


def _parsed(line: bytes, path: Path) -> Record | None:
    """The record in a line; None if the line is damaged."""
    found, _, content = line.rstrip(b"\n").partition(b" ")
    if found.decode("ascii", "replace") != checksum.of_bytes(content):
        return None
    try:
        return from_json(Record, parse_json(content), str(path))
    except (MnemoError, ValueError):
        return None
