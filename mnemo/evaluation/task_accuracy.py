"""Accuracy on a task: a model generates its answers, which are compared with the right ones.

The model's answer is its most likely symbol at each position, which it reads next; the memory is updated after each
segment as in training. All samples of a split count.

`published=True` measures as the released code of the Recurrent Memory Transformer does: answers shorter than a segment
are predicted after the right symbols; else the first token of every segment is the right one; only the first samples
count; and the first character of an equation's answer is not scored.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mnemo.data.tasks import AnyTask, Quadratic, Task, TaskSplit, samples
from mnemo.errors import MnemoError
from mnemo.inference.decoder import Decoder
from mnemo.model import Model, evaluating
from mnemo.progress import ShowProgress, silent

TOKENS_AT_ONCE = {"cuda": 1_000_000}
"""Tokens of all samples in a batch, by device, if the batch size is not given;"""
TOKENS_ON_CPU = 100_000
"""on other devices."""
PUBLISHED_SAMPLES = 50 * 32
"""Samples of the released evaluation: 50 batches of 32."""


@dataclass(frozen=True, kw_only=True)
class AnswerScore:
    character_accuracy: float
    """Share of right symbols in all answers."""
    answer_accuracy: float
    """Share of answers without a wrong symbol."""
    samples: int
    """Number of samples."""
    task: str
    split: str
    segment: int
    segments: int
    """Segments of a sample."""
    published: bool
    """Whether it was measured as the released code does."""
    seconds: float
    by_position: tuple[float, ...]
    """Share of right symbols at each position of the answer."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def answer(
    model: Model,
    task: AnyTask,
    *,
    segment: int,
    split: TaskSplit = "test",
    batch: int | None = None,
    limit: int | None = None,
    published: bool = False,
    progress: ShowProgress | None = None,
) -> AnswerScore:
    """Score a model's answers to the samples of a split, or to the first `limit` of them.

    `segment`: tokens of a segment, as in training. `batch`: samples in a batch; None chooses a number that suits the
    device. `published`: measure as the code of the Recurrent Memory Transformer does, which gives higher accuracies.
    """
    if batch is None:
        device = model.device.type
        batch = max(1, TOKENS_AT_ONCE.get(device, TOKENS_ON_CPU) // task.num_tokens)
    if batch < 1 or segment < 1 or (limit is not None and limit < 1):
        raise MnemoError(f"batch {batch}, segment {segment} and limit {limit} must be positive")
    if model.config.vocab_size != task.vocab_size:
        raise MnemoError(f"{task.label} has {task.vocab_size} symbols, the model {model.config.vocab_size}")
    limit = PUBLISHED_SAMPLES if published and limit is None else limit
    count = min(limit or task.num_samples(split), task.num_samples(split))
    scored = _Scored(task, published)
    begin = time.monotonic()
    given = given_positions(task, segment, published)
    with evaluating(model), (progress or silent)(f"answering {task.label} {split}", count, unit="samples") as bar:
        for tokens, targets in samples(task, split, batch, limit):
            predicted = write(model, torch.from_numpy(tokens), given, segment)
            scored.add(predicted.numpy(), targets)
            bar.advance(len(tokens))
    return AnswerScore(
        character_accuracy=scored.characters(),
        answer_accuracy=scored.answers(),
        samples=scored.samples,
        task=task.label,
        split=split,
        segment=segment,
        segments=task.num_segments(segment),
        published=published,
        seconds=time.monotonic() - begin,
        by_position=scored.by_position(),
    )


def given_positions(task: Task, segment: int, published: bool = False) -> np.ndarray:
    """(T,) bool: the tokens of a sample that the model is given; it generates the others."""
    predicted = task.predicted
    given = np.concatenate([[True], ~predicted[:-1]])
    if not published:
        return given
    if isinstance(task, Quadratic):
        given[int(predicted.argmax()) + 1] = True
    elif int(predicted.sum()) < segment:
        return np.ones_like(given)
    given[::segment] = True
    return given


@torch.no_grad()
def write(model: Model, tokens: Tensor, given: np.ndarray, segment: int) -> Tensor:
    """The most likely token after every position of samples (N, T), on the CPU.

    Only the tokens at `given` positions are used; each other token is the prediction at the position before it.
    """
    device = model.device
    tokens, decoder = tokens.to(device), Decoder(model, model.init(len(tokens), cached=True), segment)
    predicted, position = [], 0
    while position < len(given):
        end = position + 1
        while end < len(given) and given[end]:
            end += 1
        known = tokens[:, position:end]
        if not given[position]:
            known = torch.cat([predicted[-1][:, -1:], known[:, 1:]], 1)
        predicted.append(model.logits(decoder.feed(known)).argmax(-1))
        position = end
    return torch.cat(predicted, 1).cpu()


class _Scored:
    """Counts of right predictions, over all samples."""

    def __init__(self, task: AnyTask, published: bool) -> None:
        self._padding = task.padding
        self._places, checked = task.predicted.copy(), task.answer_begin
        if published and isinstance(task, Quadratic):
            self._places[: int(task.predicted.argmax()) + 1] = False
            checked += 1
        self._checked = np.arange(task.num_tokens)[self._places] >= checked
        self._right = np.zeros(int(self._places.sum()), dtype=np.int64)
        self._counted = np.zeros_like(self._right)
        self._whole = self.samples = 0

    def add(self, predicted: np.ndarray, targets: np.ndarray) -> None:
        targets = targets[:, self._places]
        right = predicted[:, self._places] == targets
        counted = np.ones_like(right) if self._padding is None else targets != self._padding
        self._right += (right & counted).sum(0)
        self._counted += counted.sum(0)
        self._whole += int(right[:, self._checked].all(1).sum())
        self.samples += len(right)

    def characters(self) -> float:
        return int(self._right.sum()) / int(self._counted.sum())

    def answers(self) -> float:
        return self._whole / self.samples

    def by_position(self) -> tuple[float, ...]:
        seen = self._counted > 0
        return tuple((self._right[seen] / self._counted[seen]).tolist())
