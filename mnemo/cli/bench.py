"""Measure speed beside a plain implementation of the published code, in one process.

Both formulations take turns, and medians are compared. First both must agree in float64: otherwise nothing is timed.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

import torch

from mnemo.bench import CASES, Comparison, compare, find_cases, machine
from mnemo.bench.lookahead import measure_overhead
from mnemo.checkpoint import pick_device
from mnemo.cli import console
from mnemo.errors import CheckFailed

LOOKAHEAD_LIMIT = 1.7
"""Times Transformer-XL's step, at most, where memory and segment are equally long."""


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
    lookahead: bool = False
    """Measure instead what LaMemo's refresh costs, at growing memory lengths."""
    require: bool = False
    """Fail where Mnemo is not as many times as fast as it should be."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    if args.lookahead:
        return _lookahead(args)
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


def _lookahead(args: Args) -> int:
    torch.set_num_threads(args.threads)
    rows = measure_overhead(repeats=args.repeats, show=console.progress)
    if args.json:
        console.print_json({"lookahead": [asdict(row) | {"ratio": row.ratio} for row in rows]})
        return 0
    headers = ("memory", "XL step s", "LaMemo step s", "ratio", "extra us a slot", "refresh s", "naive refresh s")
    table = []
    for row in rows:
        steps = (f"{row.xl:.3f}", f"{row.lookahead:.3f}", f"{row.ratio:.2f}", f"{1e6 * row.per_slot:.0f}")
        table.append((row.memory, *steps, f"{row.refresh:.4f}", f"{row.naive:.4f}"))
    console.table(table, headers)
    if args.require and rows[0].ratio > LOOKAHEAD_LIMIT:
        raise CheckFailed(f"a look-ahead step costs more than {LOOKAHEAD_LIMIT} of Transformer-XL's")
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
