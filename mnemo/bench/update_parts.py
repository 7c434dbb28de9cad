"""Time single parts of an update on a GPU, each beside its plain version: `python -m mnemo.bench.update_parts`.

Shapes are those of `speedrun-novels`: 64 rows of 512 tokens, 8 heads of 64, a memory of 1,024. Queries, keys and the
projection of keys and values are timed forward and backward; the plain version of queries and keys is compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnemo.bench.timing import event_timing, graph_timing
from mnemo.ops.heads import place_heads, place_heads_plain
from mnemo.ops.projection import _ProjectBehind, project_rows
from mnemo.ops.rotary import rotary_angles
from mnemo.training import muon

HEADS, SIZE, WIDTH, LAYERS = 8, 64, 512, 12
EPS = 1e-5
Calls = dict[str, Callable[[], object]]


def both_passes(function: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Callable[[], object]:
    slope = torch.randn_like(function())
    return lambda: torch.autograd.grad(function(), leaves, slope)


def heads(device: torch.device, batch: int, rows: int) -> Calls:
    x = torch.randn(batch, rows, WIDTH, device=device, dtype=torch.bfloat16).requires_grad_()
    weight, tables = torch.ones(SIZE, device=device).requires_grad_(), rotary_angles(rows, SIZE, 10000.0, x.detach())
    plain = torch.compile(place_heads_plain, dynamic=False) if device.type == "cuda" else place_heads_plain
    return {
        "kernel": both_passes(lambda: place_heads(x, HEADS, weight, EPS, tables), [x, weight]),
        "compiled": both_passes(lambda: plain(x, HEADS, weight, EPS, *tables, 0), [x, weight]),
    }


def projection(device: torch.device, batch: int, memory: int, rows: int) -> Calls:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    held, x, weight = draw(batch, memory, WIDTH), draw(batch, rows, WIDTH), draw(2 * WIDTH, WIDTH)
    leaves = [x.requires_grad_(), weight.requires_grad_()]

    def both(function: Callable[..., Any]) -> Callable[[], object]:
        slopes = [draw(batch, memory + rows, WIDTH) for _ in range(2)]
        return lambda: torch.autograd.grad(function(held, x, weight)[:2], leaves, slopes)

    return {"operator": both(project_rows), "plain": both(_ProjectBehind.apply)}


def muon_step(device: torch.device, layers: int, width: int) -> Calls:
    inner = 4 * width
    shapes = [(width, width), (2 * width, width), (width, width), (inner, width), (width, inner), (8, width)] * layers
    parts = [2 if shape == (2 * width, width) else 1 for shape in shapes]
    params, grads, momenta = ([torch.randn(shape, device=device) for shape in shapes] for _ in range(3))
    lr = torch.tensor(1e-3, device=device)

    def plain() -> None:
        torch._foreach_lerp_(momenta, grads, 0.05)  # pyright: ignore[reportPrivateImportUsage]
        updates = muon.orthogonal_updates(torch._foreach_lerp(grads, momenta, 0.95), parts)  # pyright: ignore
        torch._foreach_mul_(params, 1 - lr * 0.1)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_mul_(updates, -lr)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(params, updates)  # pyright: ignore[reportPrivateImportUsage]

    rates: dict[str, Any] = {"lr": lr, "momentum": 0.95, "weight_decay": 0.1}
    return {"kernels": lambda: muon.step_in_kernels(params, grads, momenta, parts, **rates), "plain": plain}


def cases(device: torch.device, batch: int) -> dict[str, Callable[[], Calls]]:
    return {
        "queries": lambda: heads(device, batch, 512),
        "keys, memory 1024": lambda: heads(device, batch, 1536),
        "projection, memory 1024": lambda: projection(device, batch, 1024, 512),
        "Muon": lambda: muon_step(device, LAYERS, WIDTH),
    }


def main() -> None:
    device = torch.device("cuda")
    for name, calls in cases(device, batch=64).items():
        found = {}
        for kind, call in calls().items():
            with torch.enable_grad():
                timing = graph_timing(call) or event_timing(call, repeats=7)
            found[kind] = round(1e3 * timing.median, 4)
        print(json.dumps({"part": name, "ms": found}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
