"""The interface by which long work reports progress, independent of how it is displayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Advance(Protocol):
    def advance(self, count: float = 1, note: str = "") -> None:
        """Add to the work done; `note` (a loss, a rate) replaces the one shown before."""
        ...


class ShowProgress(Protocol):
    """Open a progress display for one piece of work; `unit="B"` means bytes."""

    def __call__(
        self, label: str, total: float | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]: ...


class _Silent:
    def advance(self, count: float = 1, note: str = "") -> None:
        pass


@contextmanager
def silent(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Advance]:
    yield _Silent()
