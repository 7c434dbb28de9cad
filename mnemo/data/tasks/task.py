"""The interface of all tasks: samples of one length, and the positions that are predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from mnemo.data.streams import chance

TaskSplit = Literal["train", "valid", "test"]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Samples are rows of symbols: a question, and an answer that a model generates symbol by symbol."""

    seed: int = 0
    """Random seed of the samples; their order in training depends on the run's seed."""
    train: int = 100_000
    """Samples for training."""
    valid: int = 5_000
    """Samples for validation."""
    test: int = 10_000
    """Samples for the final accuracy."""

    def __post_init__(self) -> None:
        if min(self.train, self.valid, self.test) < 1 or not 0 <= self.seed < 2**62:
            raise ValueError("a task needs samples in every split, and a seed from 0 to 2^62")
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for impossible sizes."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Name and size, such as copy-24."""

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Input tokens T of a sample; the last symbol of a sample is only a target."""

    @property
    @abstractmethod
    def predicted(self) -> np.ndarray:
        """(T,) bool: positions whose next symbol is predicted."""

    @abstractmethod
    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Draw samples (count, T + 1)."""

    @property
    def padding(self) -> int | None:
        """The symbol that pads answers, which symbol accuracy ignores; None if there is none."""
        return None

    @property
    def answer_begin(self) -> int:
        """The first position of the answer; an answer is right if all positions from there are right."""
        return int(self.predicted.argmax())

    def num_samples(self, split: TaskSplit) -> int:
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def num_segments(self, segment: int) -> int:
        return -(-self.num_tokens // segment)


@lru_cache(maxsize=4)
def texts(task: Task) -> dict[TaskSplit, np.ndarray]:
    """Return the samples (N, T + 1) of each split. All are drawn in one series, so distinct samples stay distinct."""
    count = task.test + task.valid + task.train
    drawn = task.draw(chance(f"task {type(task).__name__}", task.seed, 0), count)
    drawn = drawn.astype(np.min_scalar_type(task.vocab_size), copy=False)
    test, valid, train = np.split(drawn, [task.test, task.test + task.valid])
    return {"train": train, "valid": valid, "test": test}


def cut(rows: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split samples (N, T + 1) into tokens and targets (N, T); targets are -1 where nothing is predicted."""
    rows = rows.astype(np.int64)
    return rows[:, :-1], np.where(predicted, rows[:, 1:], -1)


def permutations(random: np.random.Generator, count: int, of: int, take: int) -> np.ndarray:
    """Return rows (count, take) of different numbers below `of`, in random order."""
    return random.random((count, of), dtype=np.float32).argsort(1)[:, :take]
