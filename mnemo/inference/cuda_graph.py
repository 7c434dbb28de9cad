"""CUDA graphs: record the kernels of a function once, then replay them without launching each one from Python.

A recorded function must read and write the same tensors in every call: callers copy new inputs into those tensors.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

WARMUP_CALLS = 2
"""Calls of a `RecordedFunction` before it is recorded."""


class Recorder(Protocol):
    """Turns a function without arguments into a recording that can be replayed."""

    def warm(self, function: Callable[[], Any]) -> None:
        """Call a function until compilers, autotuners and libraries have finished their set-up."""
        ...

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Return the function's result, and a function that computes it again into the same memory."""
        ...


class CudaRecorder:
    """Records CUDA graphs. Graphs that never run at the same time may share the memory of one `pool`.

    CUDA reports calls that must not happen during a recording, such as waiting for the device. `one_thread`: only those
    of the recording thread, so that other threads may use the device. Otherwise those of all threads: a backward pass
    runs in a thread of autograd, and belongs to the recording.
    """

    def __init__(self, device: torch.device, *, warmup_calls: int, pool: Any = None, one_thread: bool = False) -> None:
        self.device, self.warmup_calls, self.pool = device, warmup_calls, pool
        self.error_mode = "thread_local" if one_thread else "global"

    def warm(self, function: Callable[[], Any]) -> None:
        # On a side stream: work on the default stream before a recording can make the recording fail.
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(self.warmup_calls):
                function()
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), torch.cuda.graph(graph, pool=self.pool, capture_error_mode=self.error_mode):
            output = function()
        return output, graph.replay


def shared_pool(device: torch.device) -> Any:
    """A memory pool for several graphs that never run at the same time; None without CUDA."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class RecordedFunction:
    """A function without arguments: recorded in its first call on a CUDA device, and replayed after that.

    On other devices, and if recording fails, the function itself is called each time. `restored`: tensors that the
    function changes from call to call (cursors, counts); the warm-up calls leave them as they were.
    """

    def __init__(
        self, function: Callable[[], Any], device: torch.device, restored: Sequence[Tensor] = (), pool: Any = None
    ) -> None:
        self.function, self.restored = function, tuple(restored)
        # Inference has no backward pass, and a server's other threads copy states while its engine records.
        recorder = CudaRecorder(device, warmup_calls=WARMUP_CALLS, pool=pool, one_thread=True)
        self._recorder = recorder if device.type == "cuda" else None
        self._result: Any = None
        self._replay: Callable[[], None] | None = None

    @property
    def is_recorded(self) -> bool:
        return self._replay is not None

    def __call__(self) -> Any:
        if self._recorder is not None:
            self._record(self._recorder)
            self._recorder = None
        if self._replay is None:
            return self.function()
        self._replay()
        return self._result

    def _record(self, recorder: CudaRecorder) -> None:
        with _uncached_casts():
            self._warm(recorder)
            try:
                self._result, self._replay = recorder.record(self.function)
            except RuntimeError as error:
                torch.cuda.synchronize(recorder.device)
                reason = str(error).splitlines()[0]
                warnings.warn(f"continuing without a CUDA graph, which could not be recorded: {reason}", stacklevel=4)

    def _warm(self, recorder: CudaRecorder) -> None:
        before = [tensor.clone() for tensor in self.restored]

        def call_and_restore() -> None:
            self.function()
            for tensor, value in zip(self.restored, before, strict=True):
                tensor.copy_(value)

        recorder.warm(call_and_restore)


@contextmanager
def _uncached_casts() -> Iterator[None]:
    """Disable autocast's cache of cast weights: it is freed when autocast ends, but a graph would still read it."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Freeing an older graph during a recording makes the recording fail; graphs are often parts of cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
