"""A step divided into groups of kernels: time, launches, FLOPs or bytes, and their share of the card's limit.

Two passes of a training step are profiled. The replayed CUDA graph gives the time of a step and the gaps between its
kernels. The same update without the graph gives the operation that launched each kernel, and the shapes of its inputs.
A generated token has the replayed pass only.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from mnemo.bench.gpu_table.trace import Kernel, busy, load_kernels
from mnemo.bench.timing import wait
from mnemo.cost.gpu_specs import GPUS, Gpu
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.training_speed import RandomUpdates

REPLAYS = 5
NUM_KERNELS = 60
"""Kernels that are listed one by one, longest first."""
ATTENTION = {
    "prepare_kernel": ("attention forward", 0),
    "position_kernel": ("attention forward", 1),
    "forward_kernel": ("attention forward", 2),
    "delta_kernel": ("attention backward: preparation", 0),
    "key_value_kernel": ("attention backward: dk, dv", 4),
    "product_kernel": ("attention backward: dr, dq", 3),
    "query_kernel": ("attention backward: dq", 1),
    "sum_kernel": ("attention backward: sums", 0),
}
"""Group of each attention kernel, and its matrix products per pair of query and key."""
DECODING = {
    "_attend_part": "attention to the memory",
    "_put_together": "attention to the memory",
    "_project_row": "matrix products",
    "_project_rows": "matrix products",
    "_look_up": "embedding",
    "_take_likeliest": "choice of tokens",
    "_advance": "places in the memory",
}
"""Groups of the kernels of a generated token."""
COPIES, OPTIMIZER, GAPS = "copies and casts", "optimizer and clipping", "gaps between kernels"
PATTERNS = (
    ("matrix products", r"gemm|nvjet|cutlass|xmma|cublas|splitk|gemv|triton_tem|^aten::(mm|bmm|addmm|baddbmm)$"),
    ("softmax and loss", r"softmax|nll|logsumexp|cross_entropy|logaddexp"),
    (
        "norms, dropout, residuals, activations",
        r"norm|sum_rows|activation|dropout|rand|rsqrt|bernoulli|philox|add|mean|relu|gelu|sigmoid|silu|tanh|pow|threshold",
    ),
    ("embedding", r"embedding|index|gather|scatter"),
    (COPIES, r"copy|clone|cat|memcpy|memset|fill|zero|slice|transpose|permute|view"),
)
"""Searched in this order in the names of the kernel and of its operation."""
OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Group:
    name: str
    milliseconds: float
    launches: int
    gflops: float = 0.0
    megabytes: float = 0.0
    """At least: inputs of operations whose shapes are known."""
    limit: float | None = None
    """The time that the card's peaks allow for the FLOPs or bytes, divided by the measured time."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    step: str
    """How updates ran when they were timed."""
    milliseconds: float
    """Time of an update, gaps included."""
    groups: tuple[Group, ...]
    kernels: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def group_of(kernel: Kernel) -> str:
    if kernel.name in ATTENTION:
        return ATTENTION[kernel.name][0]
    if kernel.name in DECODING:
        return DECODING[kernel.name]
    if kernel.in_optimizer or kernel.name == "adam_kernel" or "multi_tensor_apply" in kernel.name:
        return OPTIMIZER
    names = (kernel.name.lower(), kernel.op.lower())
    return next((group for group, pattern in PATTERNS if any(re.search(pattern, name) for name in names)), OTHER)


def grouped(kernels: Sequence[Kernel], attention_flops: float, gpu: Gpu | None) -> list[Group]:
    """Sum the kernels of one step by group, longest first.

    `attention_flops`: of one matrix product per pair of query and key, in all layers.
    """
    members: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        members[group_of(kernel)].append(kernel)
    found = [_group(name, group, attention_flops, gpu) for name, group in members.items()]
    return sorted(found, key=lambda group: -group.milliseconds)


def _group(name: str, kernels: Sequence[Kernel], attention_flops: float, gpu: Gpu | None) -> Group:
    own = {kernel.name for kernel in kernels} & ATTENTION.keys()
    flops = sum(kernel.flops for kernel in kernels) + sum(ATTENTION[one][1] for one in own) * attention_flops
    size = 0.0 if own else sum(kernel.bytes for kernel in kernels)
    seconds = sum(kernel.duration for kernel in kernels) / 1e6
    limit = None
    if gpu is not None and (flops or size) and seconds:
        limit = max(flops / gpu.half, size / gpu.bandwidth) / seconds
    return Group(
        name=name,
        milliseconds=1e3 * seconds,
        launches=len(kernels),
        gflops=flops / 1e9,
        megabytes=size / 1e6,
        limit=limit,
    )


def attention_flops(model: ModelConfig, train: TrainConfig) -> float:
    """FLOPs of one matrix product per visible pair of query and key in a forward pass, over all layers."""
    segment = train.segment
    pairs = [segment * length + segment * (segment + 1) / 2 for length in model.memory.lengths(model.num_layers)]
    return 2.0 * model.head_dim * model.num_heads * train.batch * (1 + train.bptt) * sum(pairs)


def longest(kernels: Sequence[Kernel]) -> tuple[dict[str, Any], ...]:
    """The kernels that take most time in total, with their launches."""
    alike: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for kernel in kernels:
        alike[kernel.name, kernel.op, group_of(kernel)].append(kernel.duration)
    rows = sorted(alike.items(), key=lambda row: -sum(row[1]))[:NUM_KERNELS]
    return tuple(
        {"kernel": name[:160], "op": op, "group": group, "launches": len(times), "milliseconds": sum(times) / 1e3}
        for (name, op, group), times in rows
    )


def find_gpu_of(name: str) -> Gpu | None:
    """The data sheet of a card by the name that its driver reports, such as `NVIDIA H200`."""
    words = name.lower().replace("-", " ").replace("rtx ", "rtx").split()
    return next((gpu for gpu in GPUS.values() if gpu.name in words), None)


def profile_updates(updates: RandomUpdates, model: ModelConfig) -> Profile:
    """Profile updates that have been compiled and recorded."""
    device = updates.device
    is_gpu = device.type == "cuda"
    replayed = traced(lambda: updates.run(REPLAYS), device)
    plain = traced(updates.run_without_graph, device, shapes=True)
    gpu = find_gpu_of(torch.cuda.get_device_name(device)) if is_gpu else None
    return put_together(updates.engine.describe(), replayed, plain, attention_flops(model, updates.config), gpu)


def profile_tokens(
    step: Callable[[], object], num_tokens: int, ring_bytes: float, weight_bytes: float, device: torch.device
) -> Profile:
    """Profile a step that generates `num_tokens` of every text, one after the other, as replays of a CUDA graph.

    `ring_bytes`, `weight_bytes`: what a token loads at least, of memories and of matrices.
    """
    kernels = traced(step, device)
    gpu = find_gpu_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    loads = {DECODING["_attend_part"]: ring_bytes, DECODING["_project_row"]: weight_bytes}
    groups = [_of_token(group, num_tokens, loads.get(group.name, 0.0), gpu) for group in grouped(kernels, 0.0, None)]
    span = (max(kernel.end for kernel in kernels) - kernels[0].begin) / num_tokens if kernels else 0.0
    gaps = Group(name=GAPS, milliseconds=max(0.0, span - busy(kernels) / num_tokens) / 1e3, launches=0)
    alike = tuple({**row, "milliseconds": row["milliseconds"] / num_tokens} for row in longest(kernels))
    return Profile(step="one token of every text", milliseconds=span / 1e3, groups=(*groups, gaps), kernels=alike)


def _of_token(group: Group, num_tokens: int, size: float, gpu: Gpu | None) -> Group:
    """The share of one token in a group of kernels, which loads `size` bytes at least."""
    milliseconds = group.milliseconds / num_tokens
    limit = size / gpu.bandwidth / (milliseconds / 1e3) if gpu is not None and size and milliseconds else None
    launches = round(group.launches / num_tokens)
    return replace(group, milliseconds=milliseconds, launches=launches, megabytes=size / 1e6, limit=limit)


def put_together(
    step: str, replayed: Sequence[Kernel], plain: Sequence[Kernel], attention: float, gpu: Gpu | None
) -> Profile:
    """Groups of the plain pass, and the gaps of the replayed one (of the plain one if replays hide their kernels)."""
    hidden = len(replayed) < len(plain)
    timed, count = (plain, 1) if hidden else (replayed, REPLAYS)
    span = (max(k.end for k in timed) - timed[0].begin) / count if timed else 0.0
    gaps = Group(name=GAPS, milliseconds=max(0.0, span - busy(timed) / count) / 1e3, launches=0)
    return Profile(
        step=step + (", profiled without the graph" if hidden else ""),
        milliseconds=span / 1e3,
        groups=(*grouped(plain, attention, gpu), gaps),
        kernels=longest(plain),
    )


def traced(call: Callable[[], object], device: torch.device, shapes: bool = False) -> list[Kernel]:
    """Call a function under the profiler and return the kernels that ran; `shapes`: with operations and shapes."""
    activities = [ProfilerActivity.CPU] if shapes or device.type != "cuda" else []
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    wait(device)
    with profile(activities=activities, record_shapes=shapes) as profiler:
        call()
        wait(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return load_kernels(path)


HEADERS = ("group", "ms", "share of the step", "launches", "GFLOP", "MB", "of the card's limit")


def markdown(found: dict[str, Any]) -> str:
    """A profile as a table of Markdown; profiles by the number of texts as one table each."""
    if "by_texts" in found:
        return "\n\n".join(f"{texts} texts\n\n{markdown(one)}" for texts, one in found["by_texts"].items())
    lines = ["| " + " | ".join(HEADERS) + " |", "|---" * len(HEADERS) + "|"]
    total = found["milliseconds"]
    for group in found["groups"]:
        share = f"{group['milliseconds'] / total:.0%}" if total else ""
        work = [f"{group[key]:,.0f}" if group[key] else "" for key in ("launches", "gflops", "megabytes")]
        limit = "" if group["limit"] is None else f"{group['limit']:.0%}"
        lines.append(f"| {group['name']} | {group['milliseconds']:.3f} | {share} | {' | '.join(work)} | {limit} |")
    lines.append(f"| step ({found['step']}) | {total:.3f} | | | | | |")
    return "\n".join(lines)
