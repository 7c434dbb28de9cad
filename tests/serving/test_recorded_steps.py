"""The engine with recorded steps and copies, as on a GPU; a stand-in for CUDA graphs records them on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, ClassVar

import pytest
import torch
from helpers.models import random_model, random_tokens
from helpers.recorders import Rerun
from helpers.serial_engine import SerialEngine

from mnemo.inference import cuda_graph, ring_copies
from mnemo.inference.cuda_graph import RecordedFunction
from mnemo.inference.ring_copies import RingCopies
from mnemo.inference.sampling_options import Sampling
from mnemo.memory import XL, Plan
from mnemo.model.positions import Rotary
from mnemo.serving import writing_rows
from mnemo.serving.batched_engine import BatchedEngine, empty_text
from mnemo.serving.engine import Engine, ReadJob, Token, WriteJob
from mnemo.serving.row_decoders import RingRows
from mnemo.serving.writing_rows import WritingRows

SEGMENT = 5
PLAN = Plan(long=XL(length=7), short=XL(length=2), num_long=1)


class Recording(Rerun):
    """Stands in for `CudaRecorder`. Recording computes nothing: all tensors keep their values."""

    batches: ClassVar[list[WritingRows]] = []

    def __init__(self, device: torch.device, *, warmup_calls: int, pool: Any = None, one_thread: bool = False) -> None:
        self.warmup_calls = warmup_calls

    def warm(self, function: Callable[[], Any]) -> None:
        for _ in range(self.warmup_calls):
            function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        tensors = [tensor for batch in self.batches for tensor in tensors_of(batch)]
        before = [tensor.clone() for tensor in tensors]
        recorded = super().record(function)
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        return recorded


def tensors_of(batch: WritingRows) -> list[torch.Tensor]:
    """Everything that steps and copies change."""
    assert isinstance(batch.decoder, RingRows) and batch.decoder.copies is not None
    copies = batch.decoder.copies
    rings = [part for one in (copies.rings, copies.one) for part in (*one.buffers, *one.cursors)]
    return [*rings, batch.hidden, *(part for pair in copies.arriving for part in pair)]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WritingRows]]:
    """All rows that are made, with recorded steps and copies."""
    made: list[WritingRows] = []

    def on_gpu(function: Any, device: Any, restored: Any = (), pool: Any = None) -> RecordedFunction:
        return RecordedFunction(function, torch.device("cuda"), restored)

    original = WritingRows.__init__

    def create(self: WritingRows, model: Any, like: Any, *options: Any) -> None:
        original(self, model, like, *options)
        assert isinstance(self.decoder, RingRows)
        self.decoder.copies = RingCopies(self.decoder.rings, like.state)
        made.append(self)

    monkeypatch.setattr(Recording, "batches", made)
    monkeypatch.setattr(cuda_graph, "CudaRecorder", Recording)
    for module in (writing_rows, ring_copies):
        monkeypatch.setattr(module, "RecordedFunction", on_gpu)
    monkeypatch.setattr(WritingRows, "__init__", create)
    yield made


def texts(engine: Engine) -> list[list[Token]]:
    """Texts of different prompts, lengths and options, continued twice."""
    lengths, samplings = (
        (3, 12, 5, 8, 1),
        (Sampling(), Sampling(0.8, 4), Sampling(0), Sampling(1, None, 0.7), Sampling()),
    )
    prompts = [random_tokens(1, length, seed=length)[0] for length in lengths]
    states: list[Any] = [engine.submit(ReadJob(state=None, ids=[ids])).result(60).state for ids in prompts]
    written: list[list[Token]] = [[] for _ in states]
    for count in (7, 13):
        jobs = [
            WriteJob(state=state, num_tokens=count + row, sampling=sampling, seed=row, first_draw=len(written[row]))
            for row, (state, sampling) in enumerate(zip(states, samplings, strict=True))
        ]
        handles = [engine.submit(job) for job in jobs]
        for tokens, handle in zip(written, handles, strict=True):
            tokens += [event for event in handle.events() if isinstance(event, Token)]
        states = [handle.result(60).state for handle in handles]
    return written


@pytest.mark.parametrize(
    ("prepared", "changes"),
    [
        pytest.param(False, dict(memory=PLAN), id="xl"),
        pytest.param(True, dict(memory=PLAN), id="xl-prepared", marks=pytest.mark.thorough),
        pytest.param(False, dict(memory=PLAN, positions=Rotary()), id="rotary", marks=pytest.mark.thorough),
        pytest.param(True, dict(memory=PLAN, positions=Rotary()), id="rotary-prepared"),
    ],
)
def test_recorded_steps_write_the_same(batches: list[WritingRows], prepared: bool, changes: dict[str, Any]) -> None:
    model = random_model(**changes)
    with closing(BatchedEngine(model, SEGMENT, rows=3, fixed=True)) as engine:
        engine.on_gpu = True
        if prepared:
            engine._rows_for(empty_text(model, SEGMENT), 3).prepare()
        together = texts(engine)
    (batch,) = batches
    assert all(step is not None and step.is_recorded for step in batch.recorded.values())
    with closing(SerialEngine(model, SEGMENT)) as serial:
        alone = texts(serial)
    for mine, theirs in zip(together, alone, strict=True):
        assert [token.id for token in mine] == [token.id for token in theirs]
        assert [token.logprob for token in mine] == pytest.approx([token.logprob for token in theirs])
