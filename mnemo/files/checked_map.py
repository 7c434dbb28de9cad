"""Memory-mapped arrays whose content is verified block by block, each block when it is used for the first time.

A corpus can be larger than the memory, and a run may use a small part of it, so that checking it as a whole before
each use would cost more than the use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnemo.errors import MnemoError
from mnemo.files import checksum
from mnemo.progress import Advance

BLOCK_BYTES = 1 << 20
_verified: dict[tuple[Any, ...], bytearray] = {}
"""For each file, which of its blocks this process has verified."""


@dataclass(frozen=True, kw_only=True)
class BlockSums:
    """The checksum of each block of a file; the last block may be shorter."""

    size: int
    """Bytes of a block."""
    checksums: tuple[str, ...]

    def fits(self, num_bytes: int) -> bool:
        """Whether there is one checksum for each block of a file of this size; items have 8 bytes at most."""
        return self.size > 0 and self.size % 8 == 0 and len(self.checksums) == -(-num_bytes // self.size)


def block_sums(path: Path) -> BlockSums:
    """Compute the checksums of the blocks of a file."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
        return BlockSums(size=BLOCK_BYTES, checksums=tuple(map(checksum.of_bytes, blocks)))


Accept = Callable[[Path, np.ndarray], None]
"""Checks the values of a block, after its checksum was verified."""


def accept_all(path: Path, items: np.ndarray) -> None:
    pass


class BlockGuard:
    """Verifies the blocks of an array that were not verified before in this process."""

    def __init__(self, path: Path, items: np.ndarray, sums: BlockSums, accept: Accept) -> None:
        found = path.stat()
        key = (os.path.realpath(path), found.st_ino, found.st_size, found.st_mtime_ns, sums)
        self._done = _verified.setdefault(key, bytearray(len(sums.checksums)))
        self._path, self._items, self._sums, self._accept = path, items, sums, accept
        self._per_block = sums.size // items.itemsize

    def require(self, low: int, high: int) -> None:
        """Raise MnemoError if a block with one of the items from `low` to `high` is damaged."""
        for block in range(low // self._per_block, -(-high // self._per_block)):
            if not self._done[block]:
                self._verify(block)
                self._done[block] = True

    def damaged(self, bar: Advance) -> list[str]:
        """Verify all blocks again; return what is wrong."""
        problems = []
        for block in range(len(self._done)):
            try:
                self._verify(block)
            except MnemoError as error:
                problems.append(str(error))
            bar.advance(min(self._sums.size, self._items.nbytes - block * self._sums.size))
        return problems

    def _verify(self, block: int) -> None:
        items = self._items[block * self._per_block : (block + 1) * self._per_block]
        if checksum.of_bytes(items.data) != self._sums.checksums[block]:
            begin = block * self._sums.size
            place = f"bytes {begin:,} to {begin + items.nbytes:,}"
            raise MnemoError(f"{self._path} {checksum.CHANGED} ({place}): prepare the corpus again")
        self._accept(self._path, items)


class CheckedMap(np.memmap):
    """A memory-mapped array. A slice or item of it is verified before it is returned, as a plain array.

    NumPy functions that take the whole array do not verify it; `array[:]` does.
    """

    guard: BlockGuard | None = None
    plain: np.ndarray

    @staticmethod
    def of(items: np.memmap, guard: BlockGuard) -> CheckedMap:
        checked = items.view(CheckedMap)
        checked.guard, checked.plain = guard, np.asarray(items)
        return checked

    def __getitem__(self, key: Any) -> Any:
        if self.guard is None:  # a result of NumPy
            return super().__getitem__(key)
        low, high = 0, len(self)
        if isinstance(key, slice) and key.step in (None, 1):
            low, high, _ = key.indices(high)
        elif isinstance(key, (int, np.integer)):
            low, high, _ = slice(key, key + 1 or None).indices(high)
        self.guard.require(low, high)
        return self.plain[key]
