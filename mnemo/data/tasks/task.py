"""The interface of all tasks: samples of one length, and the positions that are predicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

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


def permutations(random: np.random.Generator, count: int, of: int, take: int) -> np.ndarray:
    """Return rows (count, take) of different numbers below `of`, in random order."""
    return random.random((count, of), dtype=np.float32).argsort(1)[:, :take]
