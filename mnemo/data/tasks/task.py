"""What all tasks have in common: samples of one length, and the positions in them that are to be predicted."""

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
    """Samples are rows of symbols: a question, and an answer that a model writes symbol by symbol."""

    seed: int = 0
    """Of the samples; the order in which training reads them is the run's own."""
    train: int = 100_000
    """Samples to learn from."""
    valid: int = 5_000
    """Samples to watch progress on."""
    test: int = 10_000
    """Samples to measure accuracy on."""

    def __post_init__(self) -> None:
        if min(self.train, self.valid, self.test) < 1 or not 0 <= self.seed < 2**62:
            raise ValueError("a task needs samples in each of its splits, and a seed that is not negative")
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuse sizes that make no task."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name and size, such as copy-24."""

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens of a sample that are read; the last one of its text is only predicted."""

    @property
    @abstractmethod
    def predicted(self) -> np.ndarray:
        """(T,) bool: the positions whose next symbol is the model's to say."""

    @abstractmethod
    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        """(count, T + 1) texts."""

    @property
    def padding(self) -> int | None:
        """The symbol that fills answers up, and that character accuracy leaves out; None where there is none."""
        return None

    @property
    def answer_begin(self) -> int:
        """The position from which on all has to be right for an answer to be right."""
        return int(self.predicted.argmax())

    def num_samples(self, split: TaskSplit) -> int:
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def num_segments(self, segment: int) -> int:
        return -(-self.num_tokens // segment)


@lru_cache(maxsize=4)
def texts(task: Task) -> dict[TaskSplit, np.ndarray]:
    """Each split's texts (N, T + 1); splits follow each other in one series, so that distinct ones stay distinct."""
    count = task.test + task.valid + task.train
    drawn = task.draw(chance(f"task {type(task).__name__}", task.seed, 0), count)
    drawn = drawn.astype(np.min_scalar_type(task.vocab_size), copy=False)
    test, valid, train = np.split(drawn, [task.test, task.test + task.valid])
    return {"train": train, "valid": valid, "test": test}


def cut(rows: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Texts (N, T + 1) as tokens and targets (N, T); targets are -1 where nothing is predicted."""
    rows = rows.astype(np.int64)
    return rows[:, :-1], np.where(predicted, rows[:, 1:], -1)


def permutations(random: np.random.Generator, count: int, of: int, take: int) -> np.ndarray:
    """(count, take) different numbers below `of`, in random order."""
    return random.random((count, of), dtype=np.float32).argsort(1)[:, :take]
