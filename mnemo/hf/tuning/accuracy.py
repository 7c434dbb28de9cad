"""Accuracy by number of segments, with memory and with the memory cut before the last segment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.data.babilong.answers import wilson_interval
from mnemo.data.babilong.samples import BabiLong, Sample
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.tuning.memory_size import GrowthRecord, write_strengths
from mnemo.progress import ShowProgress, silent
from mnemo.recipes.tuning import Stage

TEST_SEED = 1_000_003
NUM_EXAMPLES = 3
Decode = Callable[[Sequence[int]], str]


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
    seconds: float | None = field(default=None, compare=False)
    """Time for all samples, with memory and cut"""
    gigabytes: float | None = field(default=None, compare=False)
    """Largest GPU memory in use, with the weights"""
    growth: list[dict[str, Any]] = field(default_factory=list, compare=False)
    """Norms of associative memories after 1, 2, 4, ... segments, for the first batch"""
    strengths: list[float] = field(default_factory=list, compare=False)
    """Mean write strength of every layer in the last segment, for the first batch"""
    examples: list[dict[str, Any]] = field(default_factory=list, compare=False)
    """The first samples with their answers"""

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
    return [accuracy(model, task, stage, samples, batch=batch, seed=seed, cut=cut, show=show) for stage in stages]


def accuracy(
    model: Any,
    task: BabiLong,
    stage: Stage,
    samples: int,
    *,
    batch: int = 32,
    seed: int = TEST_SEED,
    cut: bool = True,
    show: ShowProgress = silent,
    decode: Decode | None = None,
) -> Accuracy:
    """Measure the accuracy at one length, with the time and GPU memory it takes.

    `decode`: text of token ids. With it the result also describes the first samples and the size of the memory.
    """
    right = right_cut = 0
    growth, strengths, examples = GrowthRecord(), [], []
    device = memory_model(model).device
    with show(f"test {stage}", samples) as bar, Cost(device) as cost:
        for begin in range(0, samples, batch):
            numbers = range(begin, min(begin + batch, samples))
            rows = [task.sample(number, stage.length, seed, whole=True) for number in numbers]
            described = decode is not None and begin == 0
            found = answered(model, rows, stage.tokens, cut=cut, growth=growth if described else None)
            if described:
                strengths = found.strengths
                examples = [_example(*parts, decode) for parts in zip(rows, *found.written, strict=True)][:NUM_EXAMPLES]
            right, right_cut = right + int(found.right.sum()), right_cut + int(found.right_cut.sum())
            bar.advance(len(rows))
    counts = (stage.segments, stage.tokens, samples, right, right_cut)
    return Accuracy(*counts, cost.seconds, cost.gigabytes, growth.sizes, strengths, examples)


class Cost:
    """Seconds and largest GPU memory inside this context."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu, self.device = device.type == "cuda", device
        self.seconds, self.gigabytes = 0.0, None

    def __enter__(self) -> Cost:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
            self.gigabytes = torch.cuda.max_memory_allocated(self.device) / 1e9
        self.seconds = time.perf_counter() - self._begin


def _example(sample: Sample, written: Sequence[int], written_cut: Sequence[int], decode: Any) -> dict[str, Any]:
    return {
        "facts": list(sample.story.facts),
        "question": sample.story.question,
        "answer": sample.story.answer,
        "written": decode(up_to_mistake(written, sample.answer)),
        "written_cut": decode(up_to_mistake(written_cut, sample.answer)),
    }


def up_to_mistake(written: Sequence[int], answer: Sequence[int]) -> list[int]:
    """Return the generated tokens of an answer, which end `written`, up to the first wrong one.

    The tokens after it were computed from the right answer's beginning, which greedy decoding did not generate.
    """
    tokens = list(written)[-len(answer) :]
    right = next((at for at, pair in enumerate(zip(tokens, answer, strict=True)) if pair[0] != pair[1]), len(tokens))
    return tokens[: right + 1]


class Answered(NamedTuple):
    right: Tensor
    """Booleans (B,): whether each answer is right"""
    right_cut: Tensor
    """The same with the memory cut"""
    written: tuple[list[list[int]], list[list[int]]]
    """The most probable tokens at the places of the answers, with memory and cut; they end each list"""
    strengths: list[float]


@torch.no_grad()
def answered(
    model: Any, samples: Sequence[Sample], segment: int, *, cut: bool = True, growth: GrowthRecord | None = None
) -> Answered:
    """Answer samples with memory and with the memory cut.

    An answer is right if greedy decoding generates exactly its tokens. The samples have one length, which ends inside
    of their last segment. `growth`: add the size of the memory between segments to this record.
    """
    ids = torch.stack([torch.from_numpy(sample.ids) for sample in samples])
    last = (ids.shape[1] - 1) // segment * segment
    with evaluating(model, segment) as device:
        memory = None
        for begin in range(0, last, segment):
            piece = ids[:, begin : begin + segment].to(device)
            memory = model(input_ids=piece, memory=memory, return_logits=False).memory
            if growth is not None:
                growth.add(begin // segment + 1, memory)
        ending = ids[:, last:].to(device)
        right, written = _right(model, ending, samples, memory)
        without = _right(model, ending, samples, None) if cut and last else (right, written)
        strengths = [] if growth is None else write_strengths(model, ending, memory)
    return Answered(right, without[0], (written, without[1]), strengths)


def _right(model: Any, ids: Tensor, samples: Sequence[Sample], memory: Any) -> tuple[Tensor, list[list[int]]]:
    longest = max(len(sample.answer) for sample in samples)
    logits = model(input_ids=ids, memory=memory, logits_to_keep=longest + 1, return_memory=False).logits
    written = logits[:, :-1].argmax(-1)
    lengths = torch.tensor([len(sample.answer) for sample in samples], device=ids.device)
    before = torch.arange(longest, device=ids.device) < longest - lengths[:, None]
    return ((written == ids[:, -longest:]) | before).all(1).cpu(), written.tolist()


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
