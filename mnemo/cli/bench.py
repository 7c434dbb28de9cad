"""Measure speed beside a plain implementation of the published code, in one process.

Both formulations take turns, and medians are compared. First both must agree in float64: otherwise nothing is timed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from mnemo.bench import CASES, Comparison, compare, find_cases, machine
from mnemo.checkpoint import pick_device
from mnemo.cli import console
from mnemo.errors import CheckFailed


@dataclass(frozen=True, kw_only=True)
class Args:
    what: str = ",".join(CASES)
    """What to measure, between commas."""
    repeats: int = 9
    """Measured repetitions of each."""
    threads: int = 2
    """Threads of the CPU."""
    device: str = "cpu"
    """cpu, or cuda where there is a GPU."""
    require: bool = False
    """Fail where Mnemo is not as many times as fast as it should be."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    device = pick_device(args.device)
    results = compare(
        find_cases(args.what),
        device=device,
        threads=args.threads,
        repeats=args.repeats,
        progress=console.progress,
    )
    if args.json:
        where = machine(device, args.threads)
        console.print_json({"machine": where, "cases": [result.to_json() for result in results]})
    else:
        _print(results)
    busy = [result.case.name for result in results if not result.steady]
    if busy:
        print(f"timings of {', '.join(busy)} vary: the machine is busy, so measure again", file=sys.stderr)
    slow = [result.case.name for result in results if not result.holds]
    if args.require and slow:
        raise CheckFailed(f"slower than required: {', '.join(slow)}")
    return 0


def _print(results: list[Comparison]) -> None:
    headers = ("case", "mnemo tok/s", "published tok/s", "times as fast", "required", "largest difference")
    rows = []
    for result in results:
        speeds = (round(result.case.tokens / timing.median) for timing in (result.mnemo, result.published))
        rows.append(
            (result.case.name, *speeds, f"{result.ratio:.2f}", f"{result.case.required:.1f}", f"{result.error:.1e}")
        )
    console.table(rows, headers)
    for result in results:
        case = result.case
        shape = f"segment {case.segment}, memory {case.memory}, batch {case.batch}"
        print(f"{case.name}: {case.summary}; {shape}, {case.num_layers} layers of width {case.dim}")
