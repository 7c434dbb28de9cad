"""Timing side by side: contenders take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from mnemo.data.progress import Advance


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]
    """Of each repetition, in order."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """How many times as long as the fastest repetition the median one took: 1 on a machine at rest."""
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
    """Run every contender `warmup` times unmeasured, then `repeats` times in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warmup + repeats):
        for name, step in contenders.items():
            _wait(device)
            start = clock()
            step()
            _wait(device)
            if turn >= warmup:
                seconds[name].append(clock() - start)
        bar.advance()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
