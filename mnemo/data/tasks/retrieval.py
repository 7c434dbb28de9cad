"""Tasks that ask for something that was said: one value by its key, several of them, or a number hidden in noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mnemo.data.tasks.task import Task, permutations

DIGITS, LETTERS = 10, 26


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """Associative retrieval (Bulatov et al., 2022): pairs of a letter and a digit, then a letter again; which digit?

    Ids: digits 0 to 9, the start of the answer 10, letters from 11 on.
    """

    pairs: int = 4
    """Letters with a digit each; no letter and no digit comes twice."""

    def check(self) -> None:
        if not 1 <= self.pairs <= DIGITS:
            raise ValueError(f"{self.pairs} pairs: there are {DIGITS} digits, and each is used once")

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
        asked, rows = random.integers(self.pairs, size=count), np.arange(count)
        told = np.stack([keys, values], 2).reshape(count, -1)
        start = np.full(count, DIGITS)
        return np.column_stack([told, keys[rows, asked], start, values[rows, asked]])


@dataclass(frozen=True, kw_only=True)
class MultiQuery(Task):
    """Multi-query associative recall (Arora et al., 2023): pairs of a key and a value, then many of the keys again.

    After every key that is asked for the model says its value, and reads what it said before the next key.
    Ids: 0 is unused, 1 says that questions begin, keys from 2 on, then values.
    """

    pairs: int = 8
    """Keys with a value each; no key comes twice, values may."""
    queries: int = 8
    """How many of the keys are asked for."""
    keys: int = 32
    """Different keys."""
    values: int = 32
    """Different values."""

    def check(self) -> None:
        if not 1 <= self.queries <= self.pairs <= self.keys or self.values < 2:
            raise ValueError(
                f"{self.queries} queries about {self.pairs} pairs of {self.keys} keys and {self.values} values: "
                "every query is about another pair, and every pair has another key"
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
        asked = permutations(random, count, self.pairs, self.queries)
        told = np.stack([keys, values], 2)
        again = np.take_along_axis(told, asked[:, :, None], 1)
        start = np.ones((count, 1), dtype=np.int64)
        return np.hstack([told.reshape(count, -1), start, again.reshape(count, -1)])


@dataclass(frozen=True, kw_only=True)
class Passkey(Task):
    """A number somewhere in noise, and at the end the question what it was; as long as one likes.

    Ids: 0 is unused, 1 says that it is time to answer, 2 that the number follows, digits from 3 on, then noise.
    """

    length: int = 256
    """Tokens of a sample that are read."""
    digits: int = 5
    """Of the number."""
    noise: int = 16
    """Different symbols of noise."""
    train: int = 10_000
    """Samples to learn from."""
    valid: int = 1_000
    """Samples to watch progress on."""
    test: int = 1_000
    """Samples to measure accuracy on."""

    def check(self) -> None:
        if self.digits < 1 or self.noise < 1:
            raise ValueError(f"a number of {self.digits} digits among {self.noise} symbols of noise")
        if self.length < 2 * self.digits + 1:
            raise ValueError(f"{self.length} tokens have no room for {self.digits} digits, shown and asked for")

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
        place = random.integers(before - self.digits, size=(count, 1))
        np.put_along_axis(text, place, 2, axis=1)
        np.put_along_axis(text, place + 1 + np.arange(self.digits), number.astype(np.uint16), axis=1)
        start = np.ones((count, 1), dtype=np.uint16)
        return np.hstack([text, start, number.astype(np.uint16)])
