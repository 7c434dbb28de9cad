"""Copy and reverse (Bulatov et al., 2022): reproduce the shown symbols twice, or once in reverse order.

Ids: 0 is unused, 1 marks the start of the answer, symbols from 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnemo.data.tasks.task import Task
from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

START, FIRST = 1, 2


@dataclass(frozen=True, kw_only=True)
class _Shown(Task):
    symbols: int = 24
    """Number of symbols to remember."""
    alphabet: int = 10
    """Number of different symbols; the published longer tasks (120 and more symbols) have 8."""

    def check(self) -> None:
        if self.symbols < 1 or self.alphabet < 2:
            raise ValueError(f"{self.symbols} symbols of an alphabet of {self.alphabet}: at least 1 of 2 are needed")

    @property
    def vocab_size(self) -> int:
        return self.alphabet + FIRST

    @property
    def predicted(self) -> np.ndarray:
        return np.arange(self.num_tokens) >= self.symbols

    def _show(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the shown symbols, and a column that marks the start of the answer."""
        kind = np.min_scalar_type(self.vocab_size)
        shown = random.integers(FIRST, self.vocab_size, size=(count, self.symbols), dtype=kind)
        return shown, np.full((count, 1), START, dtype=kind)


@dataclass(frozen=True, kw_only=True)
class Copy(_Shown):
    """Reproduce the shown symbols, twice."""

    @property
    def label(self) -> str:
        return f"copy-{self.symbols}"

    @property
    def num_tokens(self) -> int:
        return 3 * self.symbols

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        shown, start = self._show(random, count)
        return np.hstack([shown, start, shown, shown])


@dataclass(frozen=True, kw_only=True)
class Reverse(_Shown):
    """Reproduce the shown symbols in reverse order."""

    @property
    def label(self) -> str:
        return f"reverse-{self.symbols}"

    @property
    def num_tokens(self) -> int:
        return 2 * self.symbols

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        shown, start = self._show(random, count)
        return np.hstack([shown, start, shown[:, ::-1]])
