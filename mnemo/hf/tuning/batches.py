"""Batches of samples: every micro-batch has one number of segments, and its rows have different lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from mnemo.data.babilong.background import Background
from mnemo.data.babilong.folder import BabiLongData
from mnemo.data.babilong.samples import BabiLong, Sample
from mnemo.data.tasks.task import TaskSplit
from mnemo.errors import MnemoError
from mnemo.hf.modeling import IGNORED
from mnemo.hf.tuning.curriculum import CurriculumState
from mnemo.recipes.tuning import Stage, Tuning

FULL_ROWS = 0.5
"""Share of training samples that fill their last segment; the others end anywhere in it"""
MOST_ROWS = 4
"""Stages with shorter segments than others have up to this many times as many rows, since they cost less"""
MANY = 2**40
BOOK_LABELS = 0.125
"""Share of tokens with a loss in text of books: logits of all tokens would use most of the GPU memory"""


def build_task(data: BabiLongData, split: TaskSplit, tokenizer: Any, most: int | None = None) -> BabiLong:
    """Return the samples of a split in tokens of a model; its end-of-text token follows the answer."""

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return BabiLong(data.stories(split), Background.of(data.sentences(split, most), encode), encode, end=end)


def check_room(task: BabiLong, stages: Sequence[Stage]) -> None:
    """Refuse stages that are too short for the longest story."""
    needed = task.longest_story()
    for stage in stages:
        if stage.length < needed:
            raise MnemoError(f"stage {stage} has {stage.length} tokens, but a story with its question has {needed}")


def collate(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Return rows padded on the left, with labels where they have some; without a mask if all have the same length."""
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    for row, sample in enumerate(samples):
        begin = longest - len(sample.ids)
        ids[row, begin:] = torch.from_numpy(sample.ids)
        mask[row, begin:] = 1
        labels[row, begin:] = torch.from_numpy(sample.labels)
    batch = {"input_ids": ids, "labels": labels}
    return batch if bool(mask.all()) else batch | {"attention_mask": mask}


class Draw:
    """Training samples; micro-batch number k of a step depends on the seed, the step, k and the stage only.

    `mix`: share of micro-batches of an earlier stage. `far`: share of samples whose facts all lie before their last
    segment. Others are often answered from the last segment alone, and give the memory no gradient. `recall`: share of
    the far samples whose facts are to be written in the last segment, which gives the memory far more gradient.
    """

    def __init__(self, task: BabiLong, stages: Sequence[Stage], options: Tuning) -> None:
        self.task, self.stages, self.rows = task, stages, options.micro_batch
        self.mix, self.far, self.recall, self.seed = options.mix, options.far, options.recall, options.seed
        self._least = task.longest_story()
        self._segment = max(stage.tokens for stage in stages)

    def micro_batch(self, step: int, number: int, current: int) -> dict[str, Any]:
        chance = np.random.default_rng((self.seed, step, number))
        earlier = current > 0 and chance.random() < self.mix
        stage = self.stages[int(chance.integers(current)) if earlier else current]
        lengths = self._lengths(stage, chance)
        numbers = chance.integers(MANY, size=len(lengths)).tolist()
        before_last = stage.length - stage.tokens
        far = (chance.random(len(lengths)) < self.far) & (before_last > 0)
        recall = far & (chance.random(len(lengths)) < self.recall)
        lengths = np.where(recall, stage.length, lengths).tolist()  # the last segment is full of facts
        samples = [
            self.task.sample(
                one,
                length,
                self.seed,
                whole=True,
                facts_within=before_last if distant else None,
                recall_within=stage.tokens if recalled else 0,
            )
            for one, length, distant, recalled in zip(numbers, lengths, far.tolist(), recall.tolist(), strict=True)
        ]
        return collate(samples) | {"segment": stage.tokens, "segments": stage.segments, "books": False}

    def _lengths(self, stage: Stage, chance: np.random.Generator) -> list[int]:
        """Return tokens of each row. The first row fills its last segment, so that all batches have equal shapes."""
        least = max(stage.length - stage.tokens + 1, self._least)
        rows = self.rows * max(1, min(MOST_ROWS, self._segment // stage.tokens))
        drawn = chance.integers(least, stage.length + 1, size=rows)
        full = chance.random(rows) < FULL_ROWS
        full[0] = True
        return np.where(full, stage.length, drawn).tolist()


class BookDraw:
    """Text of books, in place of samples in an evenly spaced share of the steps, with labels at random tokens.

    Texts have as many segments as samples of the stage, and at most `most`.
    """

    def __init__(
        self, background: Background, stages: Sequence[Stage], rows: int, share: float, most: int | None, seed: int
    ) -> None:
        self.background, self.stages, self.rows, self.share, self.seed = background, stages, rows, share, seed
        self.most = most

    def has(self, step: int) -> bool:
        """Return whether the step is on books."""
        return int((step + 1) * self.share) > int(step * self.share)

    def micro_batch(self, step: int, number: int, current: int) -> dict[str, Any]:
        chance = np.random.default_rng((self.seed, step, number, MANY))
        tokens = self.stages[current].tokens
        segments = min(self.stages[current].segments, self.most or MANY)
        firsts = chance.integers(len(self.background), size=self.rows).tolist()
        texts = np.stack([self.background.span(first, segments * tokens)[0] for first in firsts])
        ids = torch.from_numpy(texts).long()
        labelled = torch.from_numpy(chance.random(texts.shape) < BOOK_LABELS)
        labels = torch.where(labelled, ids, IGNORED)
        return {"input_ids": ids, "labels": labels, "segment": tokens, "segments": segments, "books": True}


class TrainingSamples(IterableDataset):
    """Micro-batches from the step at which training starts or continues; a recorded curriculum selects their stage."""

    def __init__(self, draw: Draw, books: BookDraw, curriculum: CurriculumState, per_step: int) -> None:
        self.draw, self.books, self.curriculum, self.per_step = draw, books, curriculum, per_step
        self.first_step = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        step = self.first_step
        while True:
            source = self.books if self.books.has(step) else self.draw
            for number in range(self.per_step):
                yield source.micro_batch(step, number, self.curriculum.stage_at(step))
            step += 1
