"""Two halves of a batch on one GPU at the same time: while one half waits for short kernels, the other reads memories.

A decoded token alternates between attention, which is limited by the card's bandwidth, and matrix products of few rows,
which are limited by the latency of kernels. The second half starts after the first attention of the first half, so that
attention of one half runs beside the products of the other. Recorded as a CUDA graph, the halves are two branches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Half = Callable[[Callable[[], None]], Tensor]
"""Computes one half; calls its argument after the first attention."""


class TwoStreams:
    """The second half has a stream of its own on a GPU; elsewhere it is computed after the first."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, first: Half, second: Half) -> Tensor:
        """Both results, one after the other in their first dimension."""
        if self.side is None:
            return torch.cat([first(_nothing), second(_nothing)])
        main, begun = torch.cuda.current_stream(self.device), torch.cuda.Event()
        upper = first(lambda: begun.record(main))
        self.side.wait_event(begun)
        with torch.cuda.stream(self.side):
            lower = second(_nothing)
        main.wait_stream(self.side)
        return torch.cat([upper, lower])


def _nothing() -> None:
    pass
