"""`mnemo bench --alternatives`: models that are trained for the same time, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemo.bench.alternatives.results import HEADERS, collect, table
from mnemo.bench.alternatives.rows import CORPUS, SECONDS, Row
from mnemo.cli import console, row_process
from mnemo.cli.run_arguments import require_corpus
from mnemo.errors import CheckFailed, MnemoError, require_positive
from mnemo.files.json_file import write_json

if TYPE_CHECKING:
    from mnemo.bench.alternatives.measure import Conditions

RUNS, TRIALS = Path("runs/alternatives"), Path("runs/alternatives-trial")
TINY_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Options:
    folder: Path | None
    """If unset, `RUNS`, or `TRIALS` for tiny models and other training times."""
    device: str
    seconds: float | None
    commit: str | None
    only_speed: bool
    few_warps: bool
    out: Path | None
    json: bool


def measure(rows: Sequence[Row], options: Options, skip_unsupported: bool = False) -> int:
    """Measure rows one after the other, then show all that are known.

    `skip_unsupported`: leave out rows that this device cannot measure; otherwise they fail.
    """
    require_positive("--seconds", options.seconds)
    if len(rows) == 1 and rows[0].kind == "delta":
        _require_kernels(options.device)
    require_corpus(CORPUS)
    conditions = _conditions(options)
    if skip_unsupported and conditions.miniature:
        for row in (row for row in rows if row.kind == "delta"):
            print(f"row {row.name} is left out: its kernels need a CUDA device", file=sys.stderr)
        rows = [row for row in rows if row.kind != "delta"]
    failed, signal = _measure_here(rows[0], conditions) if len(rows) == 1 else _measure_apart(rows, conditions)
    if signal is not None:
        return console.interrupted(signal)
    if len(failed) < len(rows):
        planned = {"seconds_aimed": conditions.seconds, "miniature": conditions.miniature}
        _show(collect(conditions.folder, planned), options)
    if failed:
        raise CheckFailed(f"not measured: {', '.join(failed)}")
    return 0


Measured = tuple[list[str], int | None]
"""Rows that failed, and the signal that has stopped the measurement."""


def _measure_here(row: Row, conditions: Conditions) -> Measured:
    from mnemo.bench.alternatives.measure import RowStopped

    try:
        row_process.measure_here(row.name, conditions)
    except RowStopped as stopped:
        return [], stopped.signal
    return [], None


def _measure_apart(rows: Sequence[Row], conditions: Conditions) -> Measured:
    """Rows one after the other. None is begun beside one that another command measures: both would be slower."""
    from mnemo.training.stop_signals import SIGNALS, stop_on_signals

    failed = list[str]()
    with stop_on_signals(alone=False, tell=True) as stop:
        for number, row in enumerate(rows):
            code = row_process.measure_apart(row.name, conditions, stop)
            if stop.signal is not None or code - 128 in SIGNALS:  # another signal is a crash, or a lack of memory
                return failed, stop.signal or code - 128
            if code == row_process.IN_USE:
                return [*failed, *(each.name for each in rows[number:])], None
            if code:
                failed.append(row.name)
    return failed, None


def merge(options: Options) -> int:
    """Put the results of all rows together."""
    folder = options.folder or RUNS
    try:
        _show(collect(folder), options)
    except MnemoError as error:
        if options.folder is None and TRIALS.is_dir():
            raise MnemoError(f"{error}; trials are put together with --runs {TRIALS}") from None
        raise
    return 0


def _require_kernels(device: str) -> None:
    """Raise MnemoError if rows of the library cannot run here, before the user is asked for a corpus."""
    from mnemo.bench.alternatives import gated_delta
    from mnemo.storage.weights import pick_device

    gated_delta.require_library(pick_device(device))


def _show(found: dict[str, Any], options: Options) -> None:
    if options.out is not None:
        write_json(options.out, found)
    if options.json:
        console.print_json(found)
    else:
        console.table(table(found["rows"]), HEADERS)
    for remark in found["remarks"]:
        print(remark, file=sys.stderr)


def _conditions(options: Options) -> Conditions:
    from mnemo.bench.alternatives.measure import Conditions
    from mnemo.storage.weights import pick_device

    device = pick_device(options.device)
    miniature = device.type != "cuda"
    if miniature:
        print("without a GPU, tiny models try the command: these numbers say nothing", file=sys.stderr)
    seconds = options.seconds or (TINY_SECONDS if miniature else SECONDS)
    return Conditions(
        folder=options.folder or (TRIALS if miniature or seconds != SECONDS else RUNS),
        device=str(device),
        seconds=seconds,
        miniature=miniature,
        commit=options.commit,
        only_speed=options.only_speed,
        few_warps=options.few_warps,
    )
