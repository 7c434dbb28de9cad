"""Accuracy by number of segments, with memory and with the memory cut before the last segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mnemo.data.babilong.answers import wilson_interval
from mnemo.data.babilong.samples import BabiLong, Sample
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.tuning import Stage

TEST_SEED = 1_000_003


@dataclass(frozen=True)
class Accuracy:
    segments: int
    tokens: int
    """Tokens per segment"""
    samples: int
    right: int
    """Samples whose answer is generated exactly by greedy decoding"""
    right_cut: int
    """The same if the last segment is read without the memory of earlier ones"""

    @property
    def share(self) -> float:
        return self.right / self.samples

    @property
    def share_cut(self) -> float:
        return self.right_cut / self.samples

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.right, self.samples)

    @property
    def interval_cut(self) -> tuple[float, float]:
        return wilson_interval(self.right_cut, self.samples)

    def as_dict(self) -> dict[str, Any]:
        shares = {"accuracy": self.share, "interval": self.interval}
        cut = {"accuracy_cut": self.share_cut, "interval_cut": self.interval_cut}
        return asdict(self) | {"length": self.segments * self.tokens} | shares | cut


def accuracy_by_segments(
    model: Any,
    task: BabiLong,
    stages: Sequence[Stage],
    samples: int = 500,
    *,
    batch: int = 32,
    seed: int = TEST_SEED,
    cut: bool = True,
    show: ShowProgress = silent,
) -> list[Accuracy]:
    """Measure the accuracy on the first samples of a task, filled with background to each number of segments.

    Memory use does not depend on the length. `cut`: also answer without the memory of earlier segments.
    """
    results = []
    for stage in stages:
        right = right_cut = 0
        with show(f"test {stage}", samples) as bar:
            for begin in range(0, samples, batch):
                numbers = range(begin, min(begin + batch, samples))
                rows = [task.sample(number, stage.length, seed, whole=True) for number in numbers]
                found = answered(model, rows, stage.tokens, cut=cut)
                right, right_cut = right + int(found[0].sum()), right_cut + int(found[1].sum())
                bar.advance(len(rows))
        results.append(Accuracy(stage.segments, stage.tokens, samples, right, right_cut))
    return results


@torch.no_grad()
def answered(model: Any, samples: Sequence[Sample], segment: int, *, cut: bool = True) -> tuple[Tensor, Tensor]:
    """Return booleans (B,): whether each answer is right, with memory and with the memory cut.

    An answer is right if greedy decoding generates exactly its tokens. The samples have one length, which ends inside
    of their last segment.
    """
    ids = torch.stack([torch.from_numpy(sample.ids) for sample in samples])
    last = (ids.shape[1] - 1) // segment * segment
    with evaluating(model, segment) as device:
        memory = None
        for begin in range(0, last, segment):
            piece = ids[:, begin : begin + segment].to(device)
            memory = model(input_ids=piece, memory=memory, return_logits=False).memory
        right = _right(model, ids[:, last:].to(device), samples, memory)
        without = _right(model, ids[:, last:].to(device), samples, None) if cut and last else right
    return right, without


def _right(model: Any, ids: Tensor, samples: Sequence[Sample], memory: Any) -> Tensor:
    longest = max(len(sample.answer) for sample in samples)
    logits = model(input_ids=ids, memory=memory, logits_to_keep=longest + 1, return_memory=False).logits
    equal = logits[:, :-1].argmax(-1) == ids[:, -longest:]
    lengths = torch.tensor([len(sample.answer) for sample in samples], device=ids.device)
    before = torch.arange(longest, device=ids.device) < longest - lengths[:, None]
    return (equal | before).all(1).cpu()


@contextmanager
def evaluating(model: Any, segment: int) -> Iterator[torch.device]:
    """Set evaluation mode and the tokens per segment inside this context; yields the model's device."""
    inner = memory_model(model)
    training, before = model.training, inner.config.segment
    model.eval()
    inner.config.segment = segment
    try:
        yield inner.device
    finally:
        inner.config.segment = before
        model.train(training)
