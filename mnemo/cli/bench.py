"""Measure speed against plain implementations of the published code, in one process.

Sections: op (relative attention; attention without positions as its lower limit), training, evaluation, generation.
On a GPU they measure the papers' models, on a CPU small ones. Before anything is timed, the operation must agree with
its equation in float64, and both implementations of each case with each other. `--lookahead` measures the cost of
LaMemo's refresh at growing memory lengths; `--curves 1000` compares training with fast attention and with its equation.
`--serving RUN` measures many sessions at the same time, and a long conversation beside a transformer with a growing
cache. `--gpu-table` measures the speeds that Mnemo must reach on one GPU, and `--profile` the time by kernel of a step.
`--alternatives` trains a memory model, plain transformers and gated delta rules for the same time on enwik8.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemo.bench.alternatives import rows as alternatives
from mnemo.bench.cases import SECTIONS, check_names
from mnemo.bench.gpu_table.rows import PROFILED, find_rows
from mnemo.cli import bench_alternatives, bench_serving, bench_table, console
from mnemo.errors import CheckFailed, MnemoError, require_positive
from mnemo.files.json_file import write_json

if TYPE_CHECKING:
    import torch

    from mnemo.bench.lookahead_cost import Overhead
    from mnemo.bench.results import Comparison

FORMAT_VERSION = 1
LOOKAHEAD_LIMIT = 1.7
"""Most time of a step relative to Transformer-XL, with a memory as long as the segment."""
REPEATS, QUICK_REPEATS = 9, 3


@dataclass(frozen=True, kw_only=True)
class Args:
    what: str | None = None
    """Sections (op, training, evaluation, generation) or single cases to measure, separated by commas; with --gpu-table
    or --alternatives rows of that table. If unset, all."""
    quick: bool = False
    """Fewer repetitions: faster, less precise."""
    repeats: int | None = None
    """Repetitions of each measurement; if unset, 9, or 3 with --quick."""
    threads: int = 2
    """CPU threads."""
    device: str = "auto"
    """cpu or cuda; auto: a GPU if there is one."""
    lookahead: bool = False
    """Measure the cost of LaMemo's refresh at growing memory lengths instead."""
    curves: int | None = None
    """Train for N steps with fast attention and with its equation instead, and compare the loss curves."""
    serving: str | None = None
    """Measure serving instead, with a run or with random weights of a preset such as speedrun-enwik8."""
    http: str | None = None
    """Measure a running server instead, such as http://127.0.0.1:8000; its key is taken from MNEMO_API_KEY."""
    gpu_table: bool = False
    """Measure the table of required speeds on one GPU instead: rows start, op, base, 24x1024, long4, lamemo, rmt,
    speedrun, wikitext, generation. With --device cpu, tiny models only try the command."""
    profile: bool = False
    """Also divide the step of each row into kernels; without --gpu-table and --what, the rows base and speedrun."""
    alternatives: bool = False
    """Train models for the same time on enwik8 instead, and score them: rows memory, plain-512, plain-1024, plain-2048,
    gated-deltanet, kimi-delta (a GPU and flash-linear-attention). Needs mnemo prepare enwik8. A row takes about ten
    minutes on a GPU; what is measured of it is kept, so the same command continues it. With --device cpu, tiny models
    only try the command."""
    seconds: float | None = None
    """With --alternatives: training time of each row, without compilation, evaluation and saving; if unset, 450, and 1
    for tiny models."""
    runs: Path | None = None
    """With --alternatives: folder of the runs and of a JSON file for each row; if unset, runs/alternatives, and
    runs/alternatives-trial for tiny models and other --seconds than 450."""
    only_speed: bool = False
    """With --alternatives: measure how fast the rows train, which sets their numbers of steps and fills the caches of
    compilers; the same command without this option then trains them."""
    few_warps: bool = False
    """With --alternatives: leave out variants of flash-linear-attention's products with more than two warps, of which
    compilers have broken some; perhaps slower."""
    merge: bool = False
    """With --alternatives: measure nothing, and put the rows in --runs together."""
    commit: str | None = None
    """The measured commit, if it cannot be taken from git."""
    sessions: str = "1,8,64,256"
    """With --serving and --http: numbers of sessions that arrive at the same time, separated by commas."""
    rows: int | None = None
    """With --serving: texts that the engine computes together; if unset, 64 on a GPU and 8 on a CPU."""
    length: int | None = None
    """With --serving: tokens of the long conversation; if unset, 100,000 on a GPU and 8,000 on a CPU."""
    require: bool = False
    """Exit with code 1 if a case is slower than required."""
    out: Path | None = None
    """Also write all numbers to this JSON file, after every result."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    repeats = args.repeats if args.repeats is not None else QUICK_REPEATS if args.quick else REPEATS
    if repeats < 1 or args.threads < 1:
        raise MnemoError("threads and repetitions must be positive")
    if args.out is not None and not args.out.parent.is_dir():
        raise MnemoError(f"there is no folder {args.out.parent} to write {args.out.name} to")
    if not args.alternatives and (args.seconds is not None or args.only_speed or args.few_warps or args.merge):
        raise MnemoError("--seconds, --only-speed, --few-warps and --merge need --alternatives")
    if args.merge and (args.only_speed or args.few_warps or args.what is not None):
        raise MnemoError("--merge measures nothing: leave --what, --only-speed and --few-warps out")
    _require_one(args)
    if args.serving is not None:
        return _serving(args, args.serving)
    if args.http is not None:
        return bench_serving.measure_server(args.http, args.sessions, args.out, args.json)
    if args.gpu_table or args.profile:
        names = args.what if args.gpu_table or args.what else ",".join(PROFILED)
        options = bench_table.Options(
            profile=args.profile, commit=args.commit, require=args.require, out=args.out, json=args.json
        )
        return bench_table.measure_table(find_rows(names), args.device, options)
    if args.alternatives:
        return _alternatives(args)
    names = ",".join(SECTIONS) if args.what is None else args.what
    if not args.lookahead and args.curves is None:
        check_names(names)
    from mnemo.bench.comparison import compare
    from mnemo.storage.weights import pick_device

    device = pick_device(args.device)
    record = _record(args, device)
    if args.lookahead:
        return _lookahead(args, device, repeats, record)
    if args.curves is not None:
        return _curves(args, args.curves, device, record)
    results: list[Comparison] = []
    for result in compare(names, device=device, threads=args.threads, repeats=repeats, progress=console.progress):
        results.append(result)
        _report(result, args, record | {"cases": [done.to_json() for done in results]})
    return _finish(results, args, record)


def _require_one(args: Args) -> None:
    """Raise MnemoError for several measurements at once."""
    is_asked = {
        "--serving": args.serving is not None,
        "--http": args.http is not None,
        "--gpu-table": args.gpu_table,
        "--profile": args.profile and not args.gpu_table,
        "--alternatives": args.alternatives,
        "--lookahead": args.lookahead,
        "--curves": args.curves is not None,
    }
    if len(asked := [name for name, is_set in is_asked.items() if is_set]) > 1:
        raise MnemoError(f"{' and '.join(asked)} are different measurements: choose one of them")


def _record(args: Args, device: torch.device) -> dict[str, Any]:
    from mnemo.bench.comparison import machine
    from mnemo.bench.gpu_table.card import git_commit

    about = {"machine": machine(device, args.threads), "commit": args.commit or git_commit()}
    return {"format_version": FORMAT_VERSION} | about


def _serving(args: Args, target: str) -> int:
    bench_serving.check_target(target)
    bench_serving.check_length(args.length)
    counts = bench_serving.session_counts(args.sessions)
    require_positive("--rows", args.rows)
    import torch

    from mnemo.storage.weights import pick_device

    device = pick_device(args.device)
    torch.set_num_threads(args.threads)
    record = _record(args, device)
    found, curves = bench_serving.measure(target, device, counts, args.rows, args.length, record)
    bench_serving.save(found, curves, args.out)
    if args.json:
        console.print_json(found)
    return 0


def _alternatives(args: Args) -> int:
    rows = alternatives.find_rows(args.what)
    if args.few_warps and not any(row.kind == "delta" for row in rows):
        raise MnemoError(f"--few-warps is for rows of flash-linear-attention, which {args.what} is not")
    options = bench_alternatives.Options(
        folder=args.runs,
        device=args.device,
        seconds=args.seconds,
        commit=args.commit,
        only_speed=args.only_speed,
        few_warps=args.few_warps,
        out=args.out,
        json=args.json,
    )
    if args.merge:
        return bench_alternatives.merge(options)
    return bench_alternatives.measure(rows, options, skip_unsupported=args.what is None)


def _report(result: Comparison, args: Args, record: dict[str, Any]) -> None:
    """Print and save a result at once, so that an interrupted benchmark keeps it."""
    if args.out is not None:
        write_json(args.out, record)
    for row in result.rows():
        print("  ".join(filter(None, row)), file=sys.stderr if args.json else sys.stdout, flush=True)


def _finish(results: Sequence[Comparison], args: Args, record: dict[str, Any]) -> int:
    if args.json:
        console.print_json(record | {"cases": [result.to_json() for result in results]})
    else:
        _print(results)
    busy = [result.name for result in results if not result.steady]
    if busy:
        print(f"timings of {', '.join(busy)} vary: the machine is busy, so measure again", file=sys.stderr)
    slow = [result.name for result in results if not result.holds]
    if args.require and slow:
        raise CheckFailed(f"slower than required: {', '.join(slow)}")
    return 0


def _print(results: Sequence[Comparison]) -> None:
    from mnemo.bench.results import HEADERS, long_range

    print()
    console.table([row for result in results for row in result.rows()], HEADERS)
    for result in results:
        if result.required is not None and result.ratio is not None:
            setting = result.setting
            shape = f"segment {setting['segment']}, memory {setting['memory']}, batch {setting['batch']}"
            model = f"{setting['num_layers']} layers of width {setting['dim']}"
            print(f"{result.name}: {result.summary}; {shape}, {model}: {result.verdict}")
    for saved in long_range(results):
        print(saved.text)


def _curves(args: Args, steps: int, device: torch.device, record: dict[str, Any]) -> int:
    require_positive("--curves", steps)
    from mnemo.bench.loss_curves import SEEDS, loss_curves

    found = loss_curves(device, steps, console.progress)
    record = record | {"curves": found.to_json()}
    if args.out is not None:
        write_json(args.out, record)
    if args.json:
        console.print_json(record)
    else:
        rows = [(seed, *ends) for seed, *ends in zip(SEEDS, found.fast_valid, found.reference_valid, strict=True)]
        console.table(rows, ("seed", "valid loss, fast", "valid loss, equation"))
        moved = f"at most {found.difference:.5f} nats apart, two seeds {found.spread:.5f}"
        print(f"{steps:,} steps: the curves of fast attention and of its equation are {moved}")
    if not found.agree:
        raise CheckFailed("fast attention moves the loss curve by more than another seed does")
    return 0


def _lookahead(args: Args, device: torch.device, repeats: int, record: dict[str, Any]) -> int:
    import torch

    from mnemo.bench.lookahead_cost import measure_overhead

    torch.set_num_threads(args.threads)
    rows = measure_overhead(device, repeats=repeats, show=console.progress)
    record = record | {"lookahead": [row.to_json() for row in rows]}
    if args.out is not None:
        write_json(args.out, record)
    if args.json:
        console.print_json(record)
    else:
        _print_overhead(rows)
    if args.require and rows[0].ratio > LOOKAHEAD_LIMIT:
        raise CheckFailed(f"a look-ahead step takes more than {LOOKAHEAD_LIMIT} times as long as Transformer-XL's")
    return 0


def _print_overhead(rows: Sequence[Overhead]) -> None:
    headers = ("memory", "XL step s", "LaMemo step s", "ratio", "extra us a slot", "refresh s", "naive refresh s")
    table = []
    for row in rows:
        steps = (f"{row.xl:.4f}", f"{row.lookahead:.4f}", f"{row.ratio:.2f}", f"{1e6 * row.per_slot:.1f}")
        table.append((row.memory, *steps, f"{row.refresh:.5f}", f"{row.naive:.5f}"))
    console.table(table, headers)
