"""`mnemo bench --gpu-table` and `--profile`: required speeds on one GPU, with the state of the card."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemo.bench.gpu_table.rows import Row
from mnemo.cli import console
from mnemo.errors import CheckFailed
from mnemo.files.json_file import write_json

if TYPE_CHECKING:
    from mnemo.bench.gpu_table.schedule import RowResult

CPU_GIB = 1000.0
"""Tiny models on a CPU all fit together."""


@dataclass(frozen=True, kw_only=True)
class Options:
    profile: bool
    commit: str | None
    require: bool
    out: Path | None
    json: bool


def measure_table(rows: Sequence[Row], device_name: str, options: Options) -> int:
    """Measure rows, print and save each as soon as it is known, and print the table at the end."""
    from mnemo.bench.gpu_table.schedule import measure_rows
    from mnemo.storage.weights import pick_device

    device = pick_device(device_name)
    miniature, begin = device.type != "cuda", time.monotonic()
    record = _record(str(device), miniature, options)
    results: list[RowResult] = []
    gib = CPU_GIB if miniature else record["machine"]["memory_bytes"] / 2**30
    how: dict[str, Any] = {"miniature": miniature, "profile": options.profile, "show": console.progress}
    for result in measure_rows(rows, str(device), gib=gib, **how):
        results.append(result)
        _show(result, options)
        record |= {"seconds": time.monotonic() - begin, "rows": [done.to_json() for done in results]}
        if options.out is not None:
            write_json(options.out, record)
    return _finish(results, record, options)


def _record(device: str, miniature: bool, options: Options) -> dict[str, Any]:
    import torch

    from mnemo.bench.comparison import machine
    from mnemo.bench.gpu_table.card import card_state, describe, git_commit

    state = card_state()
    commit = options.commit or git_commit()
    about = machine(torch.device(device), torch.get_num_threads())
    if not options.json:
        print(f"{describe(state)}; torch {about['torch']}, Triton {about.get('triton')}, commit {commit or 'unknown'}")
        if miniature:
            print("without a GPU, tiny models try the command: these numbers say nothing about speed")
    return {"machine": about, "commit": commit, "card": state, "miniature": miniature}


def _show(result: RowResult, options: Options) -> None:
    stream = sys.stderr if options.json else sys.stdout
    for what, measured, *_, verdict in result.table():
        print("  ".join(filter(None, (what, measured, verdict))), file=stream, flush=True)
    if result.failed is not None:
        print(f"row {result.row.name} failed: {result.failed}", file=sys.stderr, flush=True)


def _finish(results: Sequence[RowResult], record: dict[str, Any], options: Options) -> int:
    from mnemo.bench.gpu_table.card import card_state, describe
    from mnemo.bench.gpu_table.schedule import HEADERS

    if options.json:
        console.print_json(record)
    else:
        print()
        console.table([row for result in results for row in result.table()], HEADERS)
        _print_profiles(results)
        print(f"{record['seconds']:.0f} s; {describe(card_state())}")
    failed = [result.row.name for result in results if result.failed is not None]
    if failed:
        raise CheckFailed(f"not measured: {', '.join(failed)}")
    slow = [what for result in results for what in result.slow]
    if options.require and slow:
        raise CheckFailed(f"slower than required: {', '.join(slow)}")
    return 0


def _print_profiles(results: Sequence[RowResult]) -> None:
    from mnemo.bench.gpu_table.profile import markdown

    for result in results:
        if result.profile is not None:
            print(f"\nprofile of row {result.row.name}\n\n{markdown(result.profile)}")
