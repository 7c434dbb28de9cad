"""Time several contenders in turns, so that a busy machine slows all of them equally.

On a GPU, whose memory is limited, contenders are instead built, measured and freed one after the other.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from mnemo.progress import Advance

CALLS_PER_GRAPH = 4
REPLAYS = 7


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]
    """Time of each repetition, in order."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """Median divided by fastest time; 1 on an idle machine."""
        return self.median / self.fastest


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int,
    device: torch.device,
    bar: Advance,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run all contenders in turns: `warmup` rounds without and `repeats` rounds with measurement."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + repeats):
        for name, step in contenders.items():
            wait(device)
            start = clock()
            step()
            wait(device)
            if turn >= warmup:
                seconds[name].append(clock() - start)
        bar.advance()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_seconds(function: Callable[[], object], device: torch.device) -> float | None:
    """Call a function; return the time for which a GPU computed, without waiting for Python. None if unknown."""
    if device.type != "cuda":
        function()
        return None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        function()
        wait(device)
    kernels = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    return sum(event.time_range.elapsed_us() for event in kernels) / 1e6 or None


def allocated(device: torch.device) -> int:
    """Return the bytes of live tensors on a GPU after garbage collection; 0 on a CPU, which is not measured."""
    if device.type != "cuda":
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


def peak_over(before: int, device: torch.device) -> int | None:
    """Return the peak allocation since `reset_peak`, minus `before`."""
    return torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def graph_timing(call: Callable[[], object]) -> Timing | None:
    """Time a call on a GPU without gaps between launches, by replaying a CUDA graph of several calls.

    None if the call cannot be recorded.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(CALLS_PER_GRAPH):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    graph.replay()
    return Timing(tuple(_events(graph.replay) / CALLS_PER_GRAPH for _ in range(REPLAYS)))


def event_timing(call: Callable[[], object], *, repeats: int, warmup: int = 3) -> Timing:
    """Time single calls from Python, including launches, by CUDA events."""
    for _ in range(warmup):
        call()
    return Timing(tuple(_events(call) for _ in range(repeats)))


def _events(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3
