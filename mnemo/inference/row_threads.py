"""Groups of a batch's rows in separate threads.

Threads that share every operation wait for each other after each one, and read each other's results from another
core's cache. Rows are independent, so a thread can instead compute some of them from the first layer to the last:
threads wait only once, at the end, and results stay in the cache of one core.
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
"""More threads would wait for the Python interpreter's lock."""
LEAST_WORK = 2**25
"""Multiplications of a group in a layer; with fewer, most of the time is the overhead of calling operations."""


def row_groups(model: Model, state: State, segment: int) -> list[slice]:
    """Divide the rows of a state among threads that score segments of this length; one group if that gains nothing."""
    batch = next(leaves(state))[1].shape[0]
    num_groups = min(batch, torch.get_num_threads(), MOST_GROUPS)
    if num_groups < 2 or not _can_share(model) or batch // num_groups * _work(model, state, segment) < LEAST_WORK:
        return [slice(0, batch)]
    edges = [batch * index // num_groups for index in range(num_groups + 1)]
    return [slice(begin, end) for begin, end in zip(edges, edges[1:], strict=False)]


def _can_share(model: Model) -> bool:
    """Autocast is not active in other threads, and only OpenMP has a number of threads for each calling thread."""
    if next(model.parameters()).device.type != "cpu" or model.training:
        return False
    return torch.backends.openmp.is_available() and not torch.is_autocast_enabled("cpu")


def _work(model: Model, state: State, segment: int) -> int:
    """Multiplications of one row in a layer, on average: with weights, keys, positions and values."""
    config, rows = model.config, model.num_rows(segment)
    weights = sum(weight.numel() for weight in model.stages.parameters())
    keys = sum(slots + rows for slots in model.memory_lengths(state))
    return rows * (weights + 3 * config.num_heads * config.head_dim * keys) // config.num_layers


class RowThreads:
    """A pool of threads, each of which uses an equal share of PyTorch's own threads."""

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="rows")
        before, all_there = torch.get_num_threads(), threading.Barrier(count)

        def settle(_: int) -> None:
            torch.set_num_threads(max(1, before // count))
            torch.get_num_threads()  # fixes this thread's number, which the line below would change
            all_there.wait()

        list(self.pool.map(settle, range(count)))
        torch.set_num_threads(before)  # new threads start with the number that was set last

    def run(self, calls: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
        """Call all functions at the same time, without gradients, and return their results in order.

        Always in inference mode, whatever the caller uses: operations have the least overhead there, so threads wait
        less for the interpreter's lock.
        """

        def alone(call: Callable[[], Tensor]) -> Tensor:
            with torch.inference_mode():
                return call()

        return list(self.pool.map(alone, calls))
