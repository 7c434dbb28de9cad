"""Retrieval tasks: recall one value by its key, several values by their keys, or a number hidden in noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mnemo.data.tasks.task import Task, permutations
from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

DIGITS, LETTERS = 10, 26


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """Associative retrieval (Bulatov et al., 2022): pairs of a letter and a digit, then one letter; answer its digit.

    Ids: digits 0 to 9, the start of the answer 10, letters from 11.
    """

    pairs: int = 4
    """Pairs of a letter and a digit; letters and digits are not repeated."""

    def check(self) -> None:
        if not 1 <= self.pairs <= DIGITS:
            raise ValueError(f"pairs must be from 1 to {DIGITS}, the number of digits, not {self.pairs}")

    @property
    def label(self) -> str:
        return f"retrieval-{self.pairs}"

    @property
    def vocab_size(self) -> int:
        return DIGITS + 1 + LETTERS

    @property
    def num_tokens(self) -> int:
        return 2 * self.pairs + 2

    @property
    def predicted(self) -> np.ndarray:
        return np.arange(self.num_tokens) == self.num_tokens - 1

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        keys = DIGITS + 1 + permutations(random, count, LETTERS, self.pairs)
        values = permutations(random, count, DIGITS, self.pairs)
        queried, rows = random.integers(self.pairs, size=count), np.arange(count)
        shown = np.stack([keys, values], 2).reshape(count, -1)
        start = np.full(count, DIGITS)
        return np.column_stack([shown, keys[rows, queried], start, values[rows, queried]])


@dataclass(frozen=True, kw_only=True)
class MultiQuery(Task):
    """Multi-query associative recall (Arora et al., 2023): pairs of a key and a value, then several of the keys again.

    After each queried key the model predicts its value, which is then part of the input. Ids: 0 is unused, 1 marks the
    start of queries, keys from 2, then values.
    """

    pairs: int = 8
    """Pairs of a key and a value; keys are not repeated, values may be."""
    queries: int = 8
    """Number of queried keys."""
    keys: int = 32
    """Different keys."""
    values: int = 32
    """Different values."""

    def check(self) -> None:
        if not 1 <= self.queries <= self.pairs <= self.keys or self.values < 2:
            raise ValueError(
                f"{self.queries} queries, {self.pairs} pairs, {self.keys} keys and {self.values} values: there must be "
                "at least as many pairs as queries, as many keys as pairs, and 2 values"
            )

    @property
    def label(self) -> str:
        return f"multi-query-{self.pairs}x{self.queries}"

    @property
    def vocab_size(self) -> int:
        return 2 + self.keys + self.values

    @property
    def num_tokens(self) -> int:
        return 2 * (self.pairs + self.queries)

    @property
    def predicted(self) -> np.ndarray:
        positions = np.arange(self.num_tokens)
        return (positions > 2 * self.pairs) & (positions % 2 == 1)

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        keys = 2 + permutations(random, count, self.keys, self.pairs)
        values = 2 + self.keys + random.integers(self.values, size=(count, self.pairs))
        queried = permutations(random, count, self.pairs, self.queries)
        shown = np.stack([keys, values], 2)
        answers = np.take_along_axis(shown, queried[:, :, None], 1)
        start = np.ones((count, 1), dtype=np.int64)
        return np.hstack([shown.reshape(count, -1), start, answers.reshape(count, -1)])


@dataclass(frozen=True, kw_only=True)
class Passkey(Task):
    """A number hidden at a random position in noise of any length; the answer at the end is the number.

    Ids: 0 is unused, 1 marks the start of the answer, 2 the start of the number, digits from 3, then noise.
    """

    length: int = 256
    """Input tokens of a sample."""
    digits: int = 5
    """Digits of the number."""
    noise: int = 16
    """Number of different noise symbols."""
    train: int = 10_000
    """Samples for training."""
    valid: int = 1_000
    """Samples for validation."""
    test: int = 1_000
    """Samples for the final accuracy."""

    def check(self) -> None:
        if self.digits < 1 or self.noise < 1:
            raise ValueError(f"digits {self.digits} and noise {self.noise} must be positive")
        if self.length < 2 * self.digits + 1:
            raise ValueError(f"{self.length} tokens are too few for {self.digits} digits and their repetition")

    @property
    def label(self) -> str:
        return f"passkey-{self.length}"

    @property
    def vocab_size(self) -> int:
        return 3 + DIGITS + self.noise

    @property
    def num_tokens(self) -> int:
        return self.length

    @property
    def predicted(self) -> np.ndarray:
        return np.arange(self.length) >= self.length - self.digits

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        number = 3 + random.integers(DIGITS, size=(count, self.digits))
        before = self.length - self.digits
        text = random.integers(3 + DIGITS, self.vocab_size, size=(count, before), dtype=np.uint16)
        position = random.integers(before - self.digits, size=(count, 1))
        np.put_along_axis(text, position, 2, axis=1)
        np.put_along_axis(text, position + 1 + np.arange(self.digits), number.astype(np.uint16), axis=1)
        start = np.ones((count, 1), dtype=np.uint16)
        return np.hstack([text, start, number.astype(np.uint16)])
