"""Samples of a task as segments: a row is a sample, and the segments of a sample follow each other.

The last segment of a sample is padded, so that all segments have the same length. Padding has no targets, and its
memory is never used, so losses equal those of the shorter segment. A memory that leaks into the next sample is used:
only then the segment has `lengths`, which keep padding out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mnemo.data.streams import Batch, Cursor, chance
from mnemo.data.tasks.task import Task, TaskSplit
from mnemo.errors import MnemoError
from mnemo.files.safe_load import is_count


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


class TaskStream:
    """Samples in a new random order in every epoch; samples that do not fill the last batch are omitted.

    `leak`: keep the memory of a row from one sample to the next, as the published Transformer-XL baseline does.
    """

    def __init__(
        self, task: Task, batch: int, segment: int, *, split: TaskSplit = "train", seed: int = 0, leak: bool = False
    ) -> None:
        self._texts = texts(task)[split]
        if batch < 1 or segment < 1 or batch > len(self._texts):
            raise MnemoError(f"{len(self._texts):,} samples do not fill a batch of {batch} (segment {segment})")
        self._predicted, self._segments = task.predicted, task.num_segments(segment)
        self._batch, self._segment, self._seed, self._leak = batch, segment, seed, leak
        self._last = task.num_tokens - (self._segments - 1) * segment
        self._order = lru_cache(maxsize=1)(self._new_order)
        self._samples = lru_cache(maxsize=1)(self._read_samples)

    def start(self) -> Cursor:
        return {"epoch": 0, "step": 0}

    def read(self, cursor: Cursor) -> tuple[Batch | None, Cursor]:
        epoch, step = cursor.get("epoch"), cursor.get("step")
        steps = len(self._texts) // self._batch * self._segments
        if not is_count(epoch) or not is_count(step, steps):
            raise MnemoError(f"the data cursor does not belong to a task of {len(self._texts):,} samples")
        if step == steps:
            return None, {"epoch": epoch + 1, "step": 0}
        number, part = divmod(step, self._segments)
        tokens, targets = self._samples(epoch, number)[part]
        begins = part == 0 and not self._leak
        starts = torch.ones(self._batch, dtype=torch.bool) if begins else None
        short = self._leak and part == self._segments - 1 and self._last < self._segment
        lengths = torch.full((self._batch,), self._last) if short else None
        return Batch(tokens, targets, lengths, starts), {"epoch": epoch, "step": step + 1}

    def _new_order(self, epoch: int) -> np.ndarray:
        return chance("samples", self._seed, epoch).permutation(len(self._texts))

    def _read_samples(self, epoch: int, number: int) -> list[tuple[Tensor, Tensor]]:
        rows = self._order(epoch)[number * self._batch : (number + 1) * self._batch]
        return segments(*cut(self._texts[rows], self._predicted), self._segment)


def segments(tokens: np.ndarray, targets: np.ndarray, segment: int) -> list[tuple[Tensor, Tensor]]:
    """Split tokens and targets (N, T) into segments of equal length."""
    missing = -tokens.shape[1] % segment
    filled = torch.from_numpy(np.pad(tokens, [(0, 0), (0, missing)]))
    scored = torch.from_numpy(np.pad(targets, [(0, 0), (0, missing)], constant_values=-1))
    pairs = zip(filled.split(segment, 1), scored.split(segment, 1), strict=True)
    return [(part.contiguous(), target.contiguous()) for part, target in pairs]


def samples(
    task: Task, split: TaskSplit, batch: int, limit: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield tokens and targets (N, T) of the samples of a split, `batch` at a time; at most `limit` samples."""
    rows = texts(task)[split][:limit]
    for begin in range(0, len(rows), batch):
        yield cut(rows[begin : begin + batch], task.predicted)
