"""Recording a function: what is restored, what a replay returns, what happens if recording fails."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.recorders import Rerun

from mnemo.inference import cuda_graph
from mnemo.inference.cuda_graph import CudaRecorder, RecordedFunction

CUDA = torch.device("cuda")


class Recording(Rerun):
    """Stands in for `CudaRecorder` on a CPU."""

    def __init__(self, device: torch.device, *, warmup_calls: int, pool: Any = None, one_thread: bool = False) -> None:
        self.device, self.warmup_calls = device, warmup_calls

    def warm(self, function: Callable[[], Any]) -> None:
        for _ in range(self.warmup_calls):
            assert not torch.is_autocast_cache_enabled()
            function()


class Refusing(Recording):
    def record(self, function: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


class Counter:
    def __init__(self) -> None:
        self.count, self.calls = torch.zeros((), dtype=torch.int64), 0

    def __call__(self) -> torch.Tensor:
        self.calls += 1
        self.count += 1
        return self.count * 10


def test_warm_up_leaves_restored_tensors_and_replays_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "CudaRecorder", Recording)
    counter, cached = Counter(), torch.is_autocast_cache_enabled()
    recorded = RecordedFunction(counter, CUDA, (counter.count,))
    counter.count -= 1  # the stand-in computes while it records, as a CUDA graph does not
    assert not recorded.is_recorded
    first = recorded()
    assert int(first) == 10 and recorded.is_recorded
    assert torch.is_autocast_cache_enabled() == cached
    assert recorded() is first and int(first) == 20
    assert counter.calls == cuda_graph.WARMUP_CALLS + 1 + 2


def test_a_function_that_cannot_be_recorded_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "CudaRecorder", Refusing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    counter = Counter()
    recorded = RecordedFunction(counter, CUDA, (counter.count,))
    with pytest.warns(UserWarning, match="could not be recorded: operation not permitted when stream is capturing$"):
        assert int(recorded()) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert int(recorded()) == 20
    assert not recorded.is_recorded


def test_other_devices_record_nothing() -> None:
    counter = Counter()
    recorded = RecordedFunction(counter, torch.device("cpu"), (counter.count,))
    assert [int(recorded()) for _ in range(3)] == [10, 20, 30]
    assert not recorded.is_recorded and counter.calls == 3


def test_only_inference_lets_other_threads_use_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass runs in another thread: CUDA must report its forbidden calls too."""
    modes = []

    @contextmanager
    def graph(_: Any, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        modes.append(capture_error_mode)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(CudaRecorder, "warm", lambda *_: None)
    RecordedFunction(lambda: None, CUDA)()
    CudaRecorder(CUDA, warmup_calls=1).record(lambda: None)
    assert modes == ["thread_local", "global"]


def test_garbage_is_collected_before_and_after_a_recording_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection that frees another graph would make the recording fail."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    enabled, _ = CudaRecorder(CUDA, warmup_calls=1).record(gc.isenabled)
    assert not enabled and gc.isenabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_that_is_garbage_does_not_disturb_a_recording() -> None:
    x, thresholds = torch.zeros(3, device=CUDA), gc.get_threshold()
    recorder = CudaRecorder(CUDA, warmup_calls=1)
    cycle: list[Any] = [recorder.record(lambda: x + 1)]
    cycle.append(cycle)
    del cycle
    gc.set_threshold(1, 1, 1)
    try:
        output, replay = recorder.record(lambda: ([[] for _ in range(1000)], x + 1)[1])
    finally:
        gc.set_threshold(*thresholds)
    replay()
    assert output.tolist() == [1.0] * 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_computes_into_the_same_memory() -> None:
    x = torch.zeros(3, device=CUDA)
    recorder = CudaRecorder(CUDA, warmup_calls=2)
    recorder.warm(lambda: x + 1)
    output, replay = recorder.record(lambda: x + 1)
    for value in (4.0, 7.0):
        x.fill_(value)
        replay()
        assert output.tolist() == [value + 1] * 3
