"""How long work reports its progress without knowing who is watching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Advance(Protocol):
    def advance(self, count: float = 1, note: str = "") -> None: ...


class ShowProgress(Protocol):
    """Opens a bar, a line or nothing for one piece of work; `unit="B"` counts bytes."""

    def __call__(
        self, label: str, total: float | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Advance]: ...


class _Silent:
    def advance(self, count: float = 1, note: str = "") -> None:
        pass


@contextmanager
def silent(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Advance]:
    yield _Silent()
