"""Estimate training on given GPUs: memory, speed, time, energy, and whether DDP or FSDP2 fits.

    mnemo estimate wikitext103-large --gpus 8 --gpu h200
    mnemo estimate enwik8-large --gpus 64 --batch 512 --tokens 1e11 --precision bf16

Estimates are computed from the recipe and a table of GPUs, whose numbers can be replaced; no GPU is needed.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from mnemo.bench.cases import CASES
from mnemo.cli import console
from mnemo.cli.run_arguments import require_existing
from mnemo.cost.gpu_specs import (
    GB,
    GPU_HOURS_PER_FAILURE,
    GPUS_PER_NODE,
    NETWORK,
    Efficiency,
    Gpu,
    changed,
    custom_gpu,
    find_gpu,
)
from mnemo.errors import MnemoError
from mnemo.files.safe_load import is_finite, load_object
from mnemo.recipes.recipe import Recipe
from mnemo.storage.run_header import find_recipe
from mnemo.units import duration_text, energy_text

if TYPE_CHECKING:
    from mnemo.cost.training_cost import Estimate, LayoutEstimate

FORMAT_VERSION = 1
SAVE_SECONDS = 60.0
"""Assumed time of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Args:
    name: Annotated[str, tyro.conf.Positional]
    """A preset, or a run's name or folder."""
    gpus: int = 1
    """Number of GPUs."""
    gpu: str = "h200"
    """Model: h200, h100, a100, l40s, rtx4090, or custom with the next four numbers."""
    gpu_memory: float | None = None
    """Memory of a GPU in GB; if unset, from the table."""
    tflops: float | None = None
    """TFLOP/s of a GPU at the recipe's precision; if unset, from the table."""
    watts: float | None = None
    """Power of a GPU's board; if unset, from the table."""
    link: float | None = None
    """GB/s that a GPU sends to others of its node, in one direction; if unset, from the table."""
    network: float = NETWORK / GB
    """GB/s that a GPU sends to other nodes, in one direction."""
    gpus_per_node: int = GPUS_PER_NODE
    """GPUs of a node, which share the fast link."""
    batch: int | None = None
    """Rows of all GPUs together; if unset, as in the recipe."""
    segment: int | None = None
    """Tokens of a row in a step; if unset, as in the recipe."""
    accumulate: int | None = None
    """Parts into which a GPU divides its rows, computed one after the other; if unset, as in the recipe."""
    precision: Literal["fp64", "fp32", "bf16", "fp16"] | None = None
    """Type of the computation; if unset, as in the recipe."""
    tokens: float | None = None
    """Tokens to train on, for example 1e12; if unset, as in the recipe."""
    efficiency: float | None = None
    """Share of the GPU's peak that a step reaches; if unset, on an h200 in bf16 as measured on the most similar model,
    else an assumed 0.3."""
    bench: Path | None = None
    """Compute the efficiency from this output of `mnemo bench --json`."""
    save_seconds: float = SAVE_SECONDS
    """Seconds to save a checkpoint, which determines the best interval between checkpoints."""
    gpu_hours_per_failure: float = GPU_HOURS_PER_FAILURE
    """Mean GPU hours between two failures."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    _check(args)
    recipe = _recipe(args)
    gpu = _gpu(args)
    require_existing(args.bench)
    from mnemo.cost.training_cost import Machine, estimate

    machine = Machine(
        gpu=gpu,
        gpus=args.gpus,
        per_node=args.gpus_per_node,
        network=args.network * GB,
        efficiency=_efficiency(args, gpu, recipe),
    )
    found = estimate(args.name, recipe, machine, tokens=args.tokens)
    if args.json:
        console.print_json({"format_version": FORMAT_VERSION, **found.to_json(), "failures": _failures(args)})
    else:
        _print(found, gpu, args)
    return 0


def _check(args: Args) -> None:
    positive = (
        "gpus",
        "gpus_per_node",
        "network",
        "tokens",
        "save_seconds",
        "gpu_hours_per_failure",
        "batch",
        "segment",
        "accumulate",
    )
    for name in positive:
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e18:
            raise MnemoError(f"--{name.replace('_', '-')} {value} must be positive")
    if args.efficiency is not None and not 0 < args.efficiency <= 1:
        raise MnemoError(f"--efficiency {args.efficiency} is a share: above 0, at most 1")
    if args.efficiency is not None and args.bench is not None:
        raise MnemoError("--efficiency and --bench cannot be combined")


def _recipe(args: Args) -> Recipe:
    recipe = find_recipe(args.name)
    names = ("batch", "segment", "accumulate", "precision")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        return replace(recipe, train=replace(recipe.train, **given))
    except ValueError as error:
        raise MnemoError(str(error)) from None


def _gpu(args: Args) -> Gpu:
    own = {"memory": args.gpu_memory, "tflops": args.tflops, "watts": args.watts, "link": args.link}
    return custom_gpu(**own) if args.gpu == "custom" else changed(find_gpu(args.gpu), **own)


def _efficiency(args: Args, gpu: Gpu, recipe: Recipe) -> Efficiency:
    precision = recipe.train.precision
    if args.efficiency is not None:
        return Efficiency(args.efficiency, "as given")
    if args.bench is not None:
        return bench_efficiency(args.bench, gpu, precision)
    from mnemo.cost.measured_shares import expected_efficiency

    return expected_efficiency(gpu, precision, recipe.model)


def bench_efficiency(path: Path, gpu: Gpu, precision: str) -> Efficiency:
    """The median share of the GPU's peak over the training cases of a benchmark's output."""
    data = load_object(path)
    cases, machine = data.get("cases"), data.get("machine")
    shares = [_share(case, gpu, precision) for case in cases] if isinstance(cases, list) else []
    known = [share for share in shares if share is not None]
    if not known:
        raise MnemoError(f"{path} holds no training case of `mnemo bench --json`")
    share = statistics.median(known)
    name = machine.get("name") if isinstance(machine, dict) else None
    if not 0 < share <= 1:
        where = name or "an unnamed machine"
        raise MnemoError(f"{path}: {share:.2g} times the peak of one {gpu.name} is impossible; measured on {where}")
    return Efficiency(share, f"{path}, measured on {name}")


def _share(case: Any, gpu: Gpu, precision: str) -> float | None:
    known = CASES.get(case["case"]) if isinstance(case, dict) and isinstance(case.get("case"), str) else None
    timing = case.get("mnemo") if known is not None else None
    rate = timing.get("tokens_per_second") if isinstance(timing, dict) else None
    if known is None or not known.training or not is_finite(rate):
        return None
    from mnemo.cost.flops import flops_per_token
    from mnemo.model.shapes import shape_model

    lengths = known.config().memory.lengths(known.num_layers)
    flops = 3 * flops_per_token(shape_model(known.config()), lengths, segment=known.segment, batch=known.batch).total
    return rate * flops / gpu.peak(precision)


def _failures(args: Args) -> dict[str, float]:
    from mnemo.cost.training_cost import checkpoint_interval, failures_per_day, lost_share

    failures = failures_per_day(args.gpus, args.gpu_hours_per_failure)
    interval = checkpoint_interval(args.save_seconds, failures)
    return {
        "per_day": failures,
        "checkpoint_every_seconds": interval,
        "lost_share": lost_share(args.save_seconds, interval, failures),
    }


def _print(found: Estimate, gpu: Gpu, args: Args) -> None:
    share, source = found.efficiency
    print(f"{found.name}: {found.parameters:,} weights, {found.flops_per_token / 1e6:,.1f} MFLOPs a token in training")
    peak = f"{gpu.peak(found.precision) / 1e12:g} TFLOP/s in {found.precision}"
    print(f"{found.gpus:,} x {gpu.name}: {gpu.memory / GB:g} GB, {peak}")
    print(f"  {gpu.source}")
    print(f"efficiency {share:.3g}: {source}")
    each = f"{found.segments:,} segments of " if found.segments > 1 else ""
    print(f"{found.batch:,} rows x {each}{found.segment:,} tokens a step: {_rows_of_a_gpu(found)}\n")
    rows = [[name, *(_gigabytes(layout, name) for layout in found.layouts)] for name in MEMORY_ROWS]
    console.table([*rows, *_steps(found)], ["on one GPU", *(layout.layout for layout in found.layouts)])
    _print_advice(found, args)


def _rows_of_a_gpu(found: Estimate) -> str:
    fewest = found.batch // found.gpus
    if fewest == found.rows:
        return f"{found.rows:,} rows on a GPU"
    return f"{fewest:,} to {found.rows:,} rows on a GPU; the numbers below are of one with {found.rows:,}"


MEMORY_ROWS = ("weights", "gradients", "optimizer", "activations", "state", "logits", "gathered", "total")


def _gigabytes(layout: LayoutEstimate, name: str) -> str:
    return f"{getattr(layout.memory, name) / GB:>10,.3f} GB"


def _steps(found: Estimate) -> list[list[str]]:
    rows = {
        "fits": [("yes" if layout.fits else "NO").rjust(13) for layout in found.layouts],
        "sent in a step": [f"{layout.sent / GB:>10,.3f} GB" for layout in found.layouts],
        "time to send": [f"{1e3 * layout.seconds_sending:>10,.2f} ms" for layout in found.layouts],
        "time to compute": [f"{1e3 * found.compute_seconds:>10,.2f} ms" for _ in found.layouts],
        "tokens a second": [f"{found.tokens_per_second(layout):>10,.0f}   " for layout in found.layouts],
        "time to train": [duration_text(86400 * found.days(layout)).rjust(13) for layout in found.layouts],
        "energy": [energy_text(1000 * found.kilowatt_hours(layout)).rjust(13) for layout in found.layouts],
    }
    return [[name, *cells] for name, cells in rows.items()]


def _print_advice(found: Estimate, args: Args) -> None:
    print(f"\nto {found.tokens:,.0f} tokens, without sending while computing; boards at {found.watts:g} W each")
    rows = f"{found.rows:,} of {found.batch:,} rows"
    print(f"state: {found.state_row / 2**20:,.2f} MiB a row; a GPU keeps {rows}, and no layout sends any of it")
    chosen = found.chosen
    if chosen is None:
        print("no layout fits: use more GPUs, fewer rows (--batch), or more parts (--accumulate)")
    else:
        print(f"take {chosen.layout}: {'the first that fits' if len(found.layouts) > 1 else 'it fits'}")
    if found.gpus > 1:
        failures = _failures(args)
        interval = failures["checkpoint_every_seconds"] / 60
        print(
            f"failures: {failures['per_day']:.3g} a day; a checkpoint every {interval:,.0f} minutes loses least "
            f"({failures['lost_share']:.2%} of the time, at {args.save_seconds:g} s a save)"
        )
