"""Rows of a batch on threads of their own.

Threads that share every operation wait for each other after each of them, and what one has written another reads, out
of its cache. Rows know nothing of each other: a thread can take some of them from the first layer to the last. Then
nobody waits before the end, scores stay with the core that they belong to, and a busy machine costs no more than the
time it takes away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from mnemo.memory.state import State, leaves
from mnemo.model import Model

MOST_GROUPS = 8
"""More would queue for the interpreter."""
LEAST_WORK = 2**25
"""Multiplications of a group in a layer; with fewer, calling the operations is most of the work."""


def row_groups(model: Model, state: State, segment: int) -> list[slice]:
    """How rows are shared out among threads that read segments of this length behind a state; one group for all where
    that would gain nothing."""
    batch = next(leaves(state))[1].shape[0]
    num_groups = min(batch, torch.get_num_threads(), MOST_GROUPS)
    if num_groups < 2 or not _can_share(model) or batch // num_groups * _work(model, state, segment) < LEAST_WORK:
        return [slice(0, batch)]
    edges = [batch * index // num_groups for index in range(num_groups + 1)]
    return [slice(begin, end) for begin, end in zip(edges, edges[1:], strict=False)]


def _can_share(model: Model) -> bool:
    """Other threads do not know of autocast, and only OpenMP gives each thread a number of threads of its own."""
    if next(model.parameters()).device.type != "cpu" or model.training:
        return False
    return torch.backends.openmp.is_available() and not torch.is_autocast_enabled("cpu")


def _work(model: Model, state: State, segment: int) -> int:
    """Multiplications of one row in a layer, on average: its weights, and keys, positions and values."""
    config, rows = model.config, model.num_rows(segment)
    weights = sum(weight.numel() for weight in model.stages.parameters())
    keys = sum(slots + rows for slots in model.memory_lengths(state))
    return rows * (weights + 3 * config.num_heads * config.head_dim * keys) // config.num_layers


class RowThreads:
    """Threads that share out the threads that PyTorch would use."""

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="rows")
        before, all_there = torch.get_num_threads(), threading.Barrier(count)

        def settle(_: int) -> None:
            torch.set_num_threads(max(1, before // count))
            torch.get_num_threads()  # a thread that has not asked yet would take over what is set below
            all_there.wait()

        list(self.pool.map(settle, range(count)))
        torch.set_num_threads(before)  # what was set last is every new thread's number

    def run(self, calls: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
        """Call all of them at once, where nothing is trained; results in order.

        In inference mode, whatever the caller's is: the less an operation does before it computes, the less its thread
        waits for the interpreter.
        """

        def alone(call: Callable[[], Tensor]) -> Tensor:
            with torch.inference_mode():
                return call()

        return list(self.pool.map(alone, calls))
