"""The result of scoring a split, and the sums of losses that it is computed from."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnemo.display import Shown, Summary
from mnemo.evaluation.settings import Documents, Order
from mnemo.units import bits, perplexity

LOSSES_IN_FLIGHT = 32
"""Segments whose losses stay on the device before they are copied to the CPU."""
WORDS_TO_GUESS_FROM = 267_735
"""The vocabulary of WikiText-103. A model whose perplexity by word is larger predicts words worse than a uniform guess
from this many: it cannot spell yet, and the number says nothing about words. `mnemo eval` does not print it."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Score(Shown):
    """Loss of a model on a split, and the settings at which it was measured."""

    loss: float
    """Nats per token."""
    tokens: int
    """Number of predicted tokens."""
    tokens_per_word: float | None
    """Of the whole split; None if its words were not counted."""
    seconds: float
    split: str
    memory: int
    """Memory length of the long-range layers."""
    segment: int
    """New tokens of a segment; tokens of a sliding window."""
    context: int
    """Tokens before the segment that are encoded again."""
    batch: int
    clamp: int | None
    same_length: bool
    documents: Documents
    order: Order
    sliding: bool
    by_position: tuple[float, ...]
    """Nats per token at each position of the segment; sliding windows but the first have the last position only."""
    temperature: float = 1.0
    """Divisor of the logits."""

    @property
    def bits_per_token(self) -> float:
        """Mean loss in bits; bits per character if tokens are characters or bytes."""
        return bits(self.loss)

    @property
    def perplexity(self) -> float:
        """exp(loss), by token."""
        return perplexity(self.loss)

    @property
    def word_perplexity(self) -> float | None:
        """Perplexity by word, from the mean number of tokens of a word; None if that is unknown."""
        return None if self.tokens_per_word is None else perplexity(self.loss * self.tokens_per_word)

    @property
    def spells(self) -> bool:
        """Whether the model predicts words better than a guess, so that its perplexity by word has a meaning."""
        return self.word_perplexity is not None and self.word_perplexity <= WORDS_TO_GUESS_FROM

    @property
    def attention(self) -> int:
        """Tokens that a segment's last token can attend to, itself included."""
        return self.memory + self.context + self.segment

    def summary(self) -> Summary:
        facts = [
            ("bits per token", f"{self.bits_per_token:.4f}"),
            ("perplexity", f"{self.perplexity:,.4g}"),
            ("nats per token", f"{self.loss:.4f}"),
            ("memory, segment", f"{self.memory:,}, {self.segment:,}" + (" (sliding window)" if self.sliding else "")),
            ("tokens", f"{self.tokens:,} in {self.seconds:.1f} s"),
        ]
        facts += [] if self.temperature == 1 else [("temperature", f"{self.temperature:g}")]
        return Summary(f"score on {self.split}", facts)

    def to_json(self, by_position: bool = False) -> dict[str, Any]:
        """Plain data; an infinite perplexity becomes None."""
        derived = ("bits_per_token", "perplexity", "word_perplexity", "attention")
        values = dataclasses.asdict(self) | {name: getattr(self, name) for name in derived}
        if not by_position:
            del values["by_position"]
        return {name: None if value == math.inf else value for name, value in values.items()}


class LossSums:
    """Sums of losses by temperature and position, in float64; several segments are copied from the device at once."""

    def __init__(self, temperatures: int, positions: int) -> None:
        self.sums = torch.zeros(temperatures, positions, dtype=torch.float64)
        self.counts = torch.zeros(positions, dtype=torch.int64)
        self.waiting: list[Tensor] = []

    def add(self, nll: Tensor, targets: Tensor) -> int:
        """Add losses (S, B, T) of the targets (B, T) that are not -1; return the number of these targets."""
        self.waiting.append(nll)
        if len(self.waiting) >= LOSSES_IN_FLIGHT:
            self._fetch()
        counted = (targets >= 0).sum(0)
        self.counts[: len(counted)] += counted
        return int(counted.sum())

    def add_last(self, nll: Tensor) -> int:
        """Add losses (S, B, 1) of the last position; return their number at one temperature."""
        self.sums[:, -1] += nll.cpu().double().sum((1, 2))
        self.counts[-1] += nll.shape[1]
        return nll.shape[1]

    def _fetch(self) -> None:
        for nll in self.waiting:
            self.sums[:, : nll.shape[2]] += nll.cpu().double().sum(1)
        self.waiting.clear()

    def tokens(self) -> int:
        return int(self.counts.sum())

    def means(self) -> list[float]:
        """Nats per token at every temperature."""
        self._fetch()
        return (self.sums.sum(1) / self.tokens()).tolist()

    def by_position(self) -> list[tuple[float, ...]]:
        """Nats per token at every temperature, by position."""
        self._fetch()
        seen = self.counts > 0
        return [tuple(part) for part in (self.sums[:, seen] / self.counts[seen]).tolist()]
