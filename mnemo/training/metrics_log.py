"""The files and services that a run's numbers go to: JSON lines always, a tracking service on request."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from mnemo.errors import MnemoError, install_command
from mnemo.files import atomic
from mnemo.files.safe_load import open_own

FORMAT_VERSION = 1
PROJECT = "mnemo"
Service = Literal["none", "wandb", "trackio"]


class JsonLines:
    """A file with one JSON object per line, which can be cut back to an earlier size.

    Each line is passed to the operating system before the next one is made, so a killed process leaves at most one
    incomplete line, at the end. The first line holds the format version.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open `path` for appending after its first `size` bytes; the rest is dropped.

        Of a file that has lost bytes, the whole lines are kept.
        """
        self._path = path
        found = path.read_bytes() if path.exists() and path.stat().st_size < size else None
        self.lost: str | None = None
        """What is missing, in one line; None if nothing is"""
        if found is not None or (size and not path.exists()):
            kept = (found or b"").rpartition(b"\n")[0]
            self.lost = f"{path} has lost lines: {len(kept.splitlines()):,} are left, and new ones are appended to them"
            size = len(kept) + 1 if kept else 0
        self._file = os.fdopen(open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab")
        atomic.sync(path.parent)  # the name of a new file
        self.cut(size)

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes; a shorter file, which has lost lines, stays as it is."""
        size = min(size, os.fstat(self._file.fileno()).st_size)
        try:
            self._file.truncate(size)
        except OSError as error:
            raise self._not_written(error) from None
        self._file.seek(size)

    def append(self, record: Mapping[str, Any]) -> None:
        if self._file.tell() == 0:
            record = {"format_version": FORMAT_VERSION, **record}
        try:
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._not_written(error) from None

    def sync(self) -> int:
        """Write every line to the disk, and return the size of the file."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._not_written(error) from None
        return self._file.tell()

    def _not_written(self, error: OSError) -> MnemoError:
        return MnemoError(f"cannot write {self._path}: {error.strerror}; what was saved before stays whole")

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *error: object) -> None:
        # Whole lines are written already; an incomplete one on a full disk is given up.
        with suppress(OSError):
            self._file.close()


class NoLines:
    """Writes nothing: for processes other than the main one."""

    lost = None

    def __init__(self, path: Path, size: int = 0) -> None:
        pass

    def cut(self, size: int) -> None:
        pass

    def append(self, record: Mapping[str, Any]) -> None:
        pass

    def sync(self) -> int:
        return 0

    def __enter__(self) -> NoLines:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Tracker(Protocol):
    def log(self, values: Mapping[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


class NoTracker:
    def log(self, values: Mapping[str, float], step: int) -> None:
        pass

    def finish(self) -> None:
        pass


class ServiceTracker:
    """wandb, or trackio, which has the same interface."""

    def __init__(self, service: str, name: str, identity: str, config: Mapping[str, Any]) -> None:
        try:
            self._service = importlib.import_module(service)
        except ImportError:
            raise MnemoError(f"--track {service} needs the {service} package: {install_command('track')}") from None
        # wandb identifies a resumed run by its id, trackio by its name.
        found_by = {"id": identity} if service == "wandb" else {}
        try:
            self._service.init(project=PROJECT, name=name, config=dict(config), resume="allow", **found_by)
        except Exception as error:
            raise MnemoError(f"{service} did not start: {error}") from None

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._service.log(dict(values), step=step)

    def finish(self) -> None:
        self._service.finish()


def open_tracker(service: Service, folder: Path, config: Mapping[str, Any]) -> Tracker:
    """The tracker of a run folder, which must exist."""
    if service == "none":
        return NoTracker()
    birth = (folder / "recipe.json").stat().st_mtime_ns
    identity = hashlib.sha256(f"{folder.resolve()} {birth}".encode()).hexdigest()[:16]
    return ServiceTracker(service, folder.name, identity, config)
