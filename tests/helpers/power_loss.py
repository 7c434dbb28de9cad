"""A simulated disk that loses power: records file operations in a folder, and builds what a crash could leave.

`Recorder` notes every change in a folder while code runs: writes to files, changes of names in folders, and fsync. The
model of the disk promises little: a write is durable after fsync of its file, a change of names after fsync of its
folder, and a rename happens as a whole or not at all. Everything else may be lost or kept in any order. For each
moment `states` keeps none, all, the first ones, a single one, or all but one of the changes of names that were not
flushed; files whose content was not flushed have their earlier content, the new one, half of what is new, or zeros.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = 0
CONTENTS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "earlier": lambda old, new: old,
    "new": lambda old, new: new,
    "half": lambda old, new: new[: (_kept(old, new) + len(new)) // 2],
    "zeros": lambda old, new: new[: _kept(old, new)].ljust(len(new), b"\0"),
}


def _kept(old: bytes, new: bytes) -> int:
    """Number of bytes at the beginning that were durable before and did not change."""
    return len(os.path.commonprefix([old, new]))


class Name(NamedTuple):
    """A place in a folder: the number of the folder, and a name in it."""

    folder: int
    name: str


class Rename(NamedTuple):
    """A change of names: `node` leaves `old` and appears at `new`; one of them is None for a new or a removed node."""

    node: int
    old: Name | None
    new: Name | None


class Write(NamedTuple):
    node: int
    content: bytes


class Sync(NamedTuple):
    node: int


class Mark(NamedTuple):
    """A promise of the recorded code, such as a saved checkpoint."""

    text: Any


Event = Rename | Write | Sync | Mark


class Recorder:
    """The events in a folder, found by comparing it before and after every operation of the `os` module."""

    def __init__(self, root: Path) -> None:
        self.root, self.events = root, list[Event]()
        self._numbers: dict[int, int] = {root.stat().st_ino: ROOT}
        self._names: dict[Name, int] = {}
        self._contents: dict[int, bytes] = {}
        self._next = 1
        self._lock = threading.RLock()  # checkpoints are written in the background

    def mark(self, text: Any) -> None:
        with self._lock:
            self.scan()
            self.events.append(Mark(text))

    @contextmanager
    def recording(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "mkdir", "rename", "replace", "unlink", "remove", "rmdir", "truncate"):
                patch.setattr(os, name, self._watched(getattr(os, name)))
            patch.setattr(os, "fsync", self._fsync(os.fsync))
            yield
        self.scan()

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.scan()
                result = function(*args, **options)
                self.scan()
                return result

        return call

    def _fsync(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def call(handle: int) -> None:
            with self._lock:
                self.scan()
                function(handle)
                number = self._numbers.get(os.fstat(handle).st_ino)
                if number is not None:
                    self.events.append(Sync(number))

        return call

    def scan(self) -> None:
        """Add an event for everything that has changed since the last scan."""
        names, contents = dict[Name, int](), dict[int, bytes]()
        seen = {self.root.stat().st_ino}
        self._walk(self.root, ROOT, names, contents, seen)
        self._numbers = {inode: number for inode, number in self._numbers.items() if inode in seen}
        # Writes come first, because a node that was never written is a folder.
        self.events += [Write(node, data) for node, data in contents.items() if self._contents.get(node) != data]
        self.events += _renames(self._names, names)
        self._names, self._contents = names, contents

    def _walk(
        self, path: Path, number: int, names: dict[Name, int], contents: dict[int, bytes], seen: set[int]
    ) -> None:
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            inode = entry.inode()
            seen.add(inode)
            if inode not in self._numbers:
                self._numbers[inode], self._next = self._next, self._next + 1
            child = names[Name(number, entry.name)] = self._numbers[inode]
            if entry.is_dir():
                self._walk(Path(entry.path), child, names, contents, seen)
            else:
                contents[child] = Path(entry.path).read_bytes()


def _renames(old: dict[Name, int], new: dict[Name, int]) -> list[Event]:
    gone = {node: name for name, node in old.items() if new.get(name) != node}
    come = {node: name for name, node in new.items() if old.get(name) != node}
    # Inside a new folder names appear after the folder itself: numbers ascend from parents to children.
    return [Rename(node, gone.get(node), come.get(node)) for node in sorted(gone.keys() | come.keys())]


@dataclass
class Disk:
    """What is durable, and what is pending at one moment."""

    names: dict[Name, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    latest: dict[int, bytes] = field(default_factory=dict)
    pending: list[Rename] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        if isinstance(event, Rename):
            self.pending.append(event)
        elif isinstance(event, Write):
            self.latest[event.node] = event.content
        elif isinstance(event, Sync):
            if event.node in self.latest:
                self.contents[event.node] = self.latest[event.node]
            durable = [each for each in self.pending if _folder(each) == event.node]
            self.pending = [each for each in self.pending if _folder(each) != event.node]
            self.names = _renamed(self.names, durable)

    def states(self) -> Iterator[dict[str, bytes]]:
        """Files by path, for every choice of what is kept."""
        for kept in _choices(self.pending):
            names = _renamed(self.names, kept)
            for choose in CONTENTS.values():
                yield dict(self._files(names, ROOT, "", choose))

    def _files(
        self, names: dict[Name, int], folder: int, prefix: str, choose: Callable[[bytes, bytes], bytes]
    ) -> Iterator[tuple[str, bytes]]:
        for name, node in names.items():
            if name.folder != folder:
                continue
            if node in self.latest or node in self.contents:
                old, new = self.contents.get(node, b""), self.latest.get(node, b"")
                yield prefix + name.name, new if old == new else choose(old, new)
            else:
                yield prefix + name.name + "/", b""
                yield from self._files(names, node, prefix + name.name + "/", choose)


def _folder(change: Rename) -> int:
    name = change.new or change.old
    assert name is not None
    return name.folder


def _renamed(names: dict[Name, int], changes: list[Rename]) -> dict[Name, int]:
    names = dict(names)
    for node, old, new in changes:
        if old is not None and names.get(old) == node:
            del names[old]
        if new is not None:
            names[new] = node
    return names


def _choices(pending: list[Rename]) -> Iterator[list[Rename]]:
    yield from (pending[:count] for count in range(len(pending) + 1))
    yield from ([each] for each in pending)
    yield from (pending[:i] + pending[i + 1 :] for i in range(len(pending)))


class Crash(NamedTuple):
    marks: tuple[Any, ...]
    """Promises that were made before."""
    files: dict[str, bytes]
    """Content by path; paths of folders end in a slash."""

    def build(self, root: Path) -> None:
        for path, content in self.files.items():
            if path.endswith("/"):
                (root / path).mkdir(parents=True, exist_ok=True)
            else:
                (root / path).write_bytes(content)


def states(events: list[Event], ignored: Callable[[str], bool]) -> list[Crash]:
    """Every different state after a crash; paths that are `ignored` do not make a difference."""
    disk, marks, found = Disk(), (), dict[Any, Crash]()
    for event in events:
        if isinstance(event, Mark):
            marks = (*marks, event.text)
            continue
        disk.apply(event)
        for files in disk.states():
            key = (marks, frozenset((path, data) for path, data in files.items() if not ignored(path)))
            found.setdefault(key, Crash(marks, files))
    return list(found.values())
