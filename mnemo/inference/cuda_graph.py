"""Work on static buffers that is recorded once, as a CUDA graph, and replayed: no launches from Python any more."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

TRIALS = 2
"""Runs before the recording, in which libraries and compilers prepare themselves."""


def shared_pool(device: torch.device) -> Any:
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Recorded:
    """A function without arguments that reads and writes the same tensors every time; what it returned is its result.

    On other devices than CUDA, and where it cannot be recorded, it is simply called. `kept`: tensors that it moves on
    (cursors, counts); trial runs leave them as they were. `pool`: memory that functions share which never run at once.
    """

    def __init__(
        self, function: Callable[[], Any], device: torch.device, kept: Sequence[Tensor] = (), pool: Any = None
    ) -> None:
        self.function, self.device, self.kept, self.pool = function, device, tuple(kept), pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None
        self.called = device.type != "cuda"

    def __call__(self) -> Any:
        if not self.called and self.graph is None:
            self._record()
        if self.graph is None:
            return self.function()
        self.graph.replay()
        return self.result

    def _record(self) -> None:
        with _uncached_casts():
            self._try_out()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self.pool):
                    self.result = self.function()
            except RuntimeError as error:
                torch.cuda.synchronize(self.device)
                reason = str(error).splitlines()[0]
                warnings.warn(f"no CUDA graph could be recorded, so this goes on without: {reason}", stacklevel=4)
                self.called = True
                return
        self.graph = graph

    def _try_out(self) -> None:
        """On another stream, as recording wants it."""
        before = [tensor.clone() for tensor in self.kept]
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(TRIALS):
                self.function()
                for tensor, value in zip(self.kept, before, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream(self.device).wait_stream(stream)


@contextmanager
def _uncached_casts() -> Iterator[None]:
    """Casts that autocast keeps are gone when it ends, but a graph would go on reading them."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
