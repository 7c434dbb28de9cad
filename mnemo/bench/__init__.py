"""Speed beside the published formulation of Transformer-XL, in one process. Nothing is timed before both agree."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mnemo.bench.cases import CASES, Case, build, check, contenders
from mnemo.bench.timing import Timing, take_turns
from mnemo.data.progress import ShowProgress, silent
from mnemo.errors import MnemoError, unknown

__all__ = ["CASES", "Case", "Comparison", "Timing", "compare", "find_cases", "machine"]

WARMUP = 2
STEADY = 1.5
"""A larger spread means that others use the machine."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    case: Case
    error: float
    """Largest difference of both formulations, in float64."""
    mnemo: Timing
    published: Timing

    @property
    def ratio(self) -> float:
        """How many times as fast Mnemo is, by medians."""
        return self.published.median / self.mnemo.median

    @property
    def holds(self) -> bool:
        return self.ratio >= self.case.required

    @property
    def steady(self) -> bool:
        """Whether the numbers can be trusted."""
        return max(self.mnemo.spread, self.published.spread) < STEADY

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "segment": self.case.segment,
            "memory": self.case.memory,
            "batch": self.case.batch,
            "dropout": self.case.dropout,
            "error": self.error,
            "ratio": self.ratio,
            "required": self.case.required,
            "holds": self.holds,
            "steady": self.steady,
            "mnemo": _timing_json(self.case, self.mnemo),
            "published": _timing_json(self.case, self.published),
        }


def _timing_json(case: Case, timing: Timing) -> dict[str, Any]:
    return {
        "tokens_per_second": case.tokens / timing.median,
        "median_seconds": timing.median,
        "fastest_seconds": timing.fastest,
        "seconds": list(timing.seconds),
    }


def find_cases(names: str) -> list[Case]:
    """Cases by names between commas."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise MnemoError("name at least one of " + ", ".join(CASES))
    for name in wanted:
        if name not in CASES:
            raise unknown("benchmark", name, CASES)
    return [CASES[name] for name in wanted]


def compare(
    cases: Sequence[Case],
    *,
    device: torch.device,
    threads: int = 2,
    repeats: int = 9,
    progress: ShowProgress = silent,
) -> list[Comparison]:
    """Check and then measure each case; `threads` are the CPU's."""
    if threads < 1 or repeats < 1:
        raise MnemoError("threads and repetitions must be positive")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [_compare(case, device, repeats, progress) for case in cases]
    finally:
        torch.set_num_threads(before)


def _compare(case: Case, device: torch.device, repeats: int, progress: ShowProgress) -> Comparison:
    error = check(case, device)
    steps = contenders(case, *build(case, device))
    with progress(f"timing {case.name}", WARMUP + repeats, unit="rounds") as bar:
        timings = take_turns(steps, repeats=repeats, warmup=WARMUP, device=device, bar=bar)
    return Comparison(case=case, error=error, mnemo=timings["mnemo"], published=timings["published"])


def machine(device: torch.device, threads: int) -> dict[str, Any]:
    """Where the numbers come from."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": str(device), "name": name, "threads": threads, "torch": torch.__version__}
