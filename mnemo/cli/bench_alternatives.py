"""`mnemo bench --alternatives`: models that are trained for the same time, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemo.bench.alternatives.results import HEADERS, collect, table
from mnemo.bench.alternatives.rows import CORPUS, ROWS, SECONDS, Row
from mnemo.cli import console
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
    if len(rows) == 1:
        measure_here(rows[0].name, conditions)
    failed = [row.name for row in rows if not _measured_apart(row, conditions)] if len(rows) > 1 else []
    if len(failed) < len(rows):
        planned = {"seconds_aimed": conditions.seconds, "miniature": conditions.miniature}
        _show(collect(conditions.folder, planned), options)
    if failed:
        raise CheckFailed(f"not measured: {', '.join(failed)}")
    return 0


def merge(options: Options) -> int:
    """Put the results of all rows together."""
    _show(collect(options.folder or RUNS), options)
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


def measure_here(name: str, conditions: Conditions) -> dict[str, Any]:
    """Measure a row in this process."""
    from mnemo.bench.alternatives.measure import measure_row
    from mnemo.cli.watching import watching

    with watching() as watcher:
        return measure_row(ROWS[name], conditions, watcher)


def _measured_apart(row: Row, conditions: Conditions) -> bool:
    """Measure a row in a new process, so that the GPU and the compiler are as fresh as for the first row."""
    process = get_context("spawn").Process(target=_serve, args=(row.name, conditions))
    process.start()
    process.join()
    return process.exitcode == 0


def _serve(name: str, conditions: Conditions) -> None:
    sys.stdout = sys.stderr  # the parent prints the table and JSON there
    try:
        measure_here(name, conditions)
    except MnemoError as error:
        print(f"row {name}: {error}", file=sys.stderr)
        sys.exit(2)
