"""Accuracy on a task: a model writes its answers by itself, and they are compared with the right ones.

Every symbol that is the model's to say is the most likely one, and is what the model reads next; the memory moves on at
segment borders as it does in training. All samples of a split count.

`published=True` measures as the released code of the Recurrent Memory Transformer does: answers shorter than a segment
are predicted with the right symbols before them; else the first token of every segment is the right one; only the first
samples count; and of equations the first character of the answer is not looked at.
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
from mnemo.model import Model
from mnemo.progress import ShowProgress, silent

TOKENS_AT_ONCE = {"cuda": 1_000_000}
"""Tokens of all samples that are answered side by side, where the batch is left open; fewer on other devices."""
TOKENS_ON_CPU = 100_000
PUBLISHED_SAMPLES = 50 * 32
"""How many the released evaluation looks at: 50 batches of 32."""


@dataclass(frozen=True, kw_only=True)
class AnswerScore:
    character_accuracy: float
    """Share of the symbols of all answers that are right."""
    answer_accuracy: float
    """Share of the answers that are right from their first symbol to their last."""
    samples: int
    """How many were answered."""
    task: str
    split: str
    segment: int
    segments: int
    """Of a sample."""
    published: bool
    """Whether it was measured in the published way."""
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
    """Let a model answer the samples of a split, or the first `limit` of them.

    `segment`: tokens of a segment, as in training. `batch`: samples that are answered side by side; as many as suit the
    device when left out. `published`: see above.
    """
    if batch is None:
        device = next(model.parameters()).device.type
        batch = max(1, TOKENS_AT_ONCE.get(device, TOKENS_ON_CPU) // task.num_tokens)
    if batch < 1 or segment < 1 or (limit is not None and limit < 1):
        raise MnemoError(f"batch {batch}, segment {segment} and limit {limit} must be positive")
    if model.config.vocab_size != task.vocab_size:
        raise MnemoError(f"{task.label} has {task.vocab_size} symbols, the model {model.config.vocab_size}")
    limit = PUBLISHED_SAMPLES if published and limit is None else limit
    count = min(limit or task.num_samples(split), task.num_samples(split))
    scored = _Scored(task, published)
    was_training, begin = model.training, time.monotonic()
    model.eval()
    try:
        with (progress or silent)(f"answering {task.label} {split}", count, unit="samples") as bar:
            for tokens, targets in samples(task, split, batch, limit):
                given = given_positions(task, segment, published)
                said = write(model, torch.from_numpy(tokens), given, segment)
                scored.add(said.numpy(), targets)
                bar.advance(len(tokens))
    finally:
        model.train(was_training)
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
    """(T,) bool: the tokens of a sample that are given to the model; the others are what it said itself."""
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
    """What a model says behind every position of samples (N, T), on the CPU.

    Only the tokens at `given` positions are looked at; each other one is what the model said at the position before.
    """
    device = next(model.parameters()).device
    tokens, decoder = tokens.to(device), Decoder(model, model.init(len(tokens), cached=True), segment)
    said, position = [], 0
    while position < len(given):
        end = position + 1
        while end < len(given) and given[end]:
            end += 1
        known = tokens[:, position:end]
        if not given[position]:
            known = torch.cat([said[-1][:, -1:], known[:, 1:]], 1)
        said.append(model.logits(decoder.feed(known)).argmax(-1))
        position = end
    return torch.cat(said, 1).cpu()


class _Scored:
    """Which of the predicted positions were right, over all samples."""

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

    def add(self, said: np.ndarray, targets: np.ndarray) -> None:
        targets = targets[:, self._places]
        right = said[:, self._places] == targets
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
