"""Measure the kernels on rows of a layer beside what torch's compiler makes of the plain definition, on a GPU.

python -m mnemo.bench.row_ops            # times of CUDA graph replays, and bytes that must be moved per second
python -m mnemo.bench.row_ops --sweep    # other tile sizes, warps and programs of the kernels
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from mnemo.bench.timing import graph_timing
from mnemo.errors import MnemoError
from mnemo.model.layers import Activation, NormKind
from mnemo.model.layers.rows import NORMS, PLAIN, Branch, Dropout, FusedRows, Norm, RowOperations

HALF, HEAD = torch.bfloat16, 64


@dataclass(frozen=True)
class Shape:
    name: str
    rows: int
    dim: int
    inner: int
    norm: NormKind
    pre: bool
    activation: Activation
    rate: float


SHAPES = (
    Shape("base", 22 * 512, 512, 2048, "layer", False, "relu", 0.1),
    Shape("speedrun", 32768, 512, 2048, "rms", True, "squared_relu", 0.1),
)


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[RowOperations], tuple[Tensor, ...]]
    """The forward pass; returns what the loss depends on"""
    leaves: tuple[Tensor, ...]
    passes: tuple[int, int]
    """Tensors of rows that a forward and a backward pass read and write"""
    bytes: int
    """Of a tensor of rows"""


def cases(shape: Shape, device: torch.device) -> list[Case]:
    norm, drop = NORMS[shape.norm](shape.dim, 1e-5).to(device), Dropout(shape.rate)
    x, branch = (_rows(shape.rows, shape.dim, device) for _ in range(2))
    bias = nn.Parameter(torch.zeros(shape.dim, device=device))
    tables = tuple(table for table in (bias, norm.weight, norm.bias) if table is not None)
    size = x.numel() * HALF.itemsize
    added = partial(_added, x=x, branch=Branch(branch, bias, drop), norm=norm, pre=shape.pre)
    found = [Case("sum, dropout, norm", added, (x, branch, *tables), (4, 5 if shape.pre else 4), size)]
    if shape.pre:
        alone, plain_sum = partial(_normed, x=x, norm=norm), partial(_summed, x=x, branch=Branch(branch, bias, drop))
        found.append(Case("norm", alone, (x, norm.weight), (2, 3), size))
        found.append(Case("sum, dropout", plain_sum, (x, branch, bias), (3, 2), size))
        heads, of_heads = _rows(shape.rows * shape.dim // HEAD, HEAD, device), NORMS["rms"](HEAD, 1e-5).to(device)
        found.append(
            Case("norm of heads", partial(_normed, x=heads, norm=of_heads), (heads, of_heads.weight), (2, 3), size)
        )
    z, inner_bias = _rows(shape.rows, shape.inner, device), nn.Parameter(torch.zeros(shape.inner, device=device))
    active = partial(_activated, z=z, bias=inner_bias, kind=shape.activation, drop=drop)
    return [*found, Case(f"{shape.activation}, dropout", active, (z, inner_bias), (2, 3), z.numel() * HALF.itemsize)]


def _rows(count: int, width: int, device: torch.device) -> Tensor:
    return torch.randn(count, width, device=device).to(HALF).requires_grad_()


def _added(rows: RowOperations, x: Tensor, branch: Branch, norm: Norm, pre: bool) -> tuple[Tensor, ...]:
    return rows.add_norm(x, branch, norm) if pre else (rows.normed_sum(x, branch, norm),)


def _normed(rows: RowOperations, x: Tensor, norm: Norm) -> tuple[Tensor, ...]:
    return (rows.norm(x, norm),)


def _summed(rows: RowOperations, x: Tensor, branch: Branch) -> tuple[Tensor, ...]:
    return (rows.add(x, branch),)


def _activated(rows: RowOperations, z: Tensor, bias: Tensor, kind: Activation, drop: Dropout) -> tuple[Tensor, ...]:
    # The plain activation may overwrite its argument: here that is the sum with the bias.
    return (rows.activate(z, bias, kind, drop, z.shape[:-1]),)


def milliseconds(case: Case, rows: RowOperations, compiled: bool) -> tuple[float, float]:
    """Times of the forward pass, and of both passes."""

    def call(rows: RowOperations) -> tuple[Tensor, ...]:
        return case.run(rows)

    run = torch.compile(call, fullgraph=True) if compiled else call
    with torch.autocast("cuda", HALF):
        draws = [torch.randn_like(out) for out in case.run(rows)]

    def forward() -> object:
        with torch.autocast("cuda", HALF):
            return run(rows)

    def both() -> object:
        with torch.autocast("cuda", HALF):
            out = run(rows)
        return torch.autograd.grad(out, case.leaves, draws)

    timed = [graph_timing(call) for call in (forward, both)]
    if timed[0] is None or timed[1] is None:
        raise MnemoError(f"{case.name} cannot be recorded as a CUDA graph")
    return timed[0].median * 1e3, timed[1].median * 1e3


def line(label: str, case: Case, timed: tuple[float, float]) -> str:
    forward, both = timed
    back = max(both - forward, 1e-6)
    rates = [passes * case.bytes / 1e6 / time for passes, time in zip(case.passes, (forward, back), strict=True)]
    times = f"forward {1e3 * forward:7.1f} us {rates[0]:6.0f} GB/s   backward {1e3 * back:7.1f} us {rates[1]:6.0f} GB/s"
    return f"{label:34} {times}"


def compare(device: torch.device) -> Iterator[str]:
    for shape in SHAPES:
        for case in cases(shape, device):
            seed = torch.ones(1, dtype=torch.int64, device=device)
            yield line(f"{shape.name}: {case.name}", case, milliseconds(case, FusedRows(seed), False))
            yield line("    torch.compile", case, milliseconds(case, PLAIN, True))


def sweep(device: torch.device) -> Iterator[str]:
    """Times of both passes with every tiling of one kernel at a time."""
    from mnemo.ops.cuda import row_operators
    from mnemo.ops.cuda.row_operators import Tiling

    forwards = [Tiling(512, 1), Tiling(1024, 1), Tiling(2048, 1), Tiling(2048, 4)]
    backwards = [Tiling(n, 1, programs) for n, programs in ((512, 8), (512, 12), (512, 16), (1024, 8), (1024, 12))]
    wide = [Tiling(2048, 4), Tiling(4096, 4), Tiling(4096, 8)]
    wide_backwards = [Tiling(2048, 4, 6), Tiling(4096, 4, 4), Tiling(4096, 8, 4)]
    for shape in SHAPES:
        first, *_, last = cases(shape, device)
        pairs = ((first, "FORWARD"), (first, "BACKWARD"), (last, "ACTIVATION"), (last, "ACTIVATION_BACKWARD"))
        for (case, name), tilings in zip(pairs, (forwards, backwards, wide, wide_backwards), strict=True):
            for tiling in tilings:
                with _replaced(row_operators, name, tiling):
                    seed = torch.ones(1, dtype=torch.int64, device=device)
                    timed = milliseconds(case, FusedRows(seed), False)
                label = f"{name} {tiling.elements} {tiling.warps} {tiling.programs}"
                yield f"{shape.name}: {line(label, case, timed)}"


@contextmanager
def _replaced(module: object, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="try other tile sizes, warps and programs")
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    args, device = parser.parse_args(), torch.device("cuda")
    for text in (sweep if args.sweep else compare)(device):
        print(text, flush=True)


if __name__ == "__main__":
    main()
