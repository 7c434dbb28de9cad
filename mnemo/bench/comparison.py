"""Check and time the cases of the benchmark, one after the other."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from mnemo.bench.attention_op import check_operations, measure_operations
from mnemo.bench.cases import REQUIRED_IN_FP32, Case, find_cases
from mnemo.bench.narrow_cases import narrow_obstacle
from mnemo.bench.results import Comparison, Measured
from mnemo.bench.timed_steps import builders, check, check_narrow
from mnemo.bench.timing import allocated, peak_over, reset_peak, take_turns
from mnemo.errors import MnemoError
from mnemo.progress import ShowProgress, silent

WARMUP = 2


def compare(
    names: str, *, device: torch.device, threads: int = 2, repeats: int = 9, progress: ShowProgress = silent
) -> Iterator[Comparison]:
    """Check the operation, then check and measure the named cases, and yield their results one by one."""
    operation, cases = find_cases(names, device)
    if threads < 1 or repeats < 1:
        raise MnemoError("the numbers of threads and repetitions must be positive")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        error = check_operations(device, progress)
        if operation:
            yield from measure_operations(device, error=error, repeats=repeats, show=progress)
        for case in cases:
            yield _compare(case, device, repeats, progress)
    finally:
        torch.set_num_threads(before)


def _compare(case: Case, device: torch.device, repeats: int, progress: ShowProgress) -> Comparison:
    error = check(case, device)
    narrow_error = None if device.type == "cuda" else check_narrow(case, device)
    measure = _one_by_one if device.type == "cuda" else _in_turns
    measured = Comparison.of(case, error, measure(case, device, repeats, progress))
    not_narrow = narrow_obstacle(case, device)
    required = case.required if not_narrow is None else REQUIRED_IN_FP32.get(case.name, case.required)
    return replace(measured, narrow_error=narrow_error, not_narrow=not_narrow, required=required)


def _in_turns(case: Case, device: torch.device, repeats: int, progress: ShowProgress) -> dict[str, Measured]:
    built = {name: build() for name, build in builders(case, device).items()}
    steps = {name: contender.step for name, contender in built.items()}
    with progress(f"timing {case.name}", WARMUP + repeats, unit="rounds") as bar:
        timed = take_turns(steps, repeats=repeats, warmup=WARMUP, device=device, bar=bar)
    return {name: Measured(timing=timed[name], tokens=built[name].tokens) for name in steps}


def _one_by_one(case: Case, device: torch.device, repeats: int, progress: ShowProgress) -> dict[str, Measured]:
    return {name: _alone(case, name, device, repeats, progress) for name in builders(case, device)}


def _alone(case: Case, name: str, device: torch.device, repeats: int, progress: ShowProgress) -> Measured:
    """Measure one contender on an otherwise empty GPU.

    The peak includes the warm-up: replays of a CUDA graph use memory that was allocated when it was recorded.
    """
    before = allocated(device)
    reset_peak(device)
    contender = builders(case, device)[name]()
    with progress(f"timing {case.name}, {name}", WARMUP + repeats, unit="rounds") as bar:
        for _ in range(WARMUP):
            contender.step()
        timed = take_turns({name: contender.step}, repeats=repeats, warmup=0, device=device, bar=bar)
    return Measured(
        timing=timed[name], tokens=contender.tokens, peak=peak_over(before, device), weights=contender.weights
    )


def machine(device: torch.device, threads: int) -> dict[str, Any]:
    """Describe the machine and the versions of libraries."""
    where = {
        "device": str(device),
        "name": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        where |= {"name": about.name, "memory_bytes": about.total_memory, "cuda": torch.version.cuda}
        where |= {"triton": _triton_version()}
    return where


def _triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None
