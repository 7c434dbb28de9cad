"""Run without a GPU and with TRITON_INTERPRET=0: every kernel is compiled for a GPU, and none of them run.

Triton's interpreter takes programs that its compiler refuses, such as a variable whose shape changes in a loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers.registers import count_products, overwritten
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mnemo.files.atomic import new_file
from mnemo.ops import Causal, KeyLimit
from mnemo.ops.cuda import decode_kernels, decode_rows, launch, row_operators
from mnemo.ops.cuda.adam_kernels import Slot, take_steps
from mnemo.ops.cuda.compile_together import launches_only_compile
from mnemo.ops.cuda.decode_attention import Table
from mnemo.ops.cuda.decode_kernels import Parts
from mnemo.ops.cuda.decode_projection import Norm, project, project_normed, project_parts
from mnemo.ops.cuda.dispatch import fused_attention
from mnemo.ops.cuda.early_start import CAPABILITY, early_starts
from mnemo.ops.cuda.early_test import layer_chain
from mnemo.ops.cuda.join_norms import join_norms
from mnemo.ops.cuda.place_heads import place_heads
from mnemo.training.muon import step_in_kernels

COMPILED: set[str] = set()
SEARCHED: set[str] = set()
"""Kernels with products in loops whose left operand is in registers"""
HALF = torch.bfloat16
SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
"""Largest shared memory of a program, by compute capability (CUDA programming guide, technical specifications)"""
STARTED_EARLY: set[str] = set()
"""Kernels that let the next one start, wait, and store only after that"""
MASKS = {
    "causal": Causal(),
    "lengths": Causal(),
    "window": Causal(window=50),
    "limit": KeyLimit(torch.tensor([40, 70])),
}


class AbsentGPU:
    """What the compiler asks of a device."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_instead_of_running(capability: int) -> None:
    driver.set_active(AbsentGPU(capability))  # type: ignore[arg-type]
    run, memory = JITFunction.run, SHARED_MEMORY[capability]
    launch.shared_memory = lambda device: memory

    def only_compile(self: Any, *args: Any, warmup: bool, **options: Any) -> None:
        kernel: Any = run(self, *args, warmup=True, **options)
        COMPILED.add(self.fn.__name__)
        if kernel.metadata.shared > memory:
            raise SystemExit(f"{self.fn.__name__} needs {kernel.metadata.shared} bytes of shared memory, not {memory}")
        if options.get("EARLY"):
            check_early_start(self.fn.__name__, kernel.asm["ptx"])
        if capability == 90 and "wgmma" in kernel.asm["ptx"]:
            search(self.fn.__name__, disassembled(kernel))

    JITFunction.run = only_compile


def disassembled(kernel: Any) -> str:
    """Instructions of a kernel, which are kept beside the compiled kernels: listing them takes half a second."""
    kept = Path(os.environ["TRITON_CACHE_DIR"]) / f"{kernel.hash}.sass"
    if not kept.exists():
        with new_file(kept) as path:
            path.write_text(kernel.asm["sass"], encoding="utf-8")
    return kept.read_text(encoding="utf-8")


def search(name: str, sass: str) -> None:
    """Look for operands that are overwritten too early; other cards have no products of this kind."""
    if count_products(sass):
        SEARCHED.add(name)
    if problems := overwritten(sass):
        raise SystemExit(f"{name}: {problems[0]}")


def check_early_start(name: str, ptx: str) -> None:
    if "griddepcontrol.launch_dependents" not in ptx:
        raise SystemExit(f"{name} does not let the next kernel start")
    if not 0 < ptx.find("griddepcontrol.wait") < ptx.find("st.global"):
        raise SystemExit(f"{name} stores before the kernel before it has ended")
    STARTED_EARLY.add(name)


def compile_attention(
    dtype: torch.dtype,
    size: int,
    mask: str,
    *,
    dropout: float = 0.0,
    biased: bool = False,
    backward: bool = True,
    gated: bool = False,
) -> None:
    batch, heads, queries, keys = 2, 2, 72, 160

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype).requires_grad_()

    rows = (batch, heads)
    q, k, v = zeros(*rows, queries, size), zeros(*rows, keys, size), zeros(*rows, keys, size)
    tables = zeros(heads, keys, size), zeros(heads, size), zeros(heads, size)
    bias = zeros(heads, keys) if biased else None
    lengths = torch.tensor([keys, 100]) if mask == "lengths" else None
    see: dict[str, Any] = {"bias": bias, "offset": keys - queries, "ahead": 0, "mask": MASKS[mask], "lengths": lengths}
    if gated:
        tables, see["gate"] = (None, None, None), zeros(batch, queries, heads)
    out, lse = fused_attention(q, k, v, *tables, **see, dropout=dropout)
    if backward:
        (out.sum() + lse.sum()).backward()


def compile_at_once(size: int) -> None:
    """What a first call does: launches compile kernels in threads; after that nothing is left to compile."""
    rows, table = torch.zeros(2, 2, 64, size, dtype=HALF), torch.zeros(2, 64, size, dtype=HALF)
    values: list[Any] = [rows, rows, rows, table, *[None] * 9, 0, 0, 0, 0.0, 0.125]
    call = launch.Arguments(*values)
    with launches_only_compile():
        out, lse, scores = launch.attend(call, True)
        launch.differentiate(call, out, lse, scores, out, None)


def compile_decoding(dtype: torch.dtype, size: int) -> None:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    table = Table(zeros(2, 70, size), zeros(2, size), zeros(2, size), zeros(2, 70))
    at = torch.zeros(3, dtype=torch.int64)
    decode_kernels.attend(
        zeros(3, 2, size), zeros(3, 2, size), zeros(3, 2, size), zeros(2, 3, 2, 70, size), table, at, at
    )
    compile_projections(zeros)
    cursors, lengths = torch.zeros(5, 4, 3, dtype=torch.int64), torch.ones(4, 1, dtype=torch.int64)
    places, slots, valid, limits, counts = cursors
    decode_rows.advance(places, slots, valid, limits, counts, lengths, lengths, 8)


def compile_early_starts(dtype: torch.dtype) -> None:
    """The chain of kernels that tests early starts; none of them may wait after its first store."""
    for batch in (1, 16):
        with early_starts(True):
            layer_chain(torch.device("cpu"), dtype, batch)()
    missing = {"_attend_part", "_put_together", "_project_row", "_project_rows"} - STARTED_EARLY
    if missing:
        raise SystemExit(f"{', '.join(sorted(missing))} cannot start early")


def compile_projections(zeros: Callable[..., torch.Tensor]) -> None:
    """Of one row and of several, with everything that may come before and after."""
    norm = Norm(zeros(96), zeros(96), 1e-5)
    for batch in (1, 3):
        project_normed(zeros(batch, 96), zeros(batch, 96), norm, zeros(40, 96), zeros(40), "relu", keep_sum=False)
    parts = Parts(torch.zeros(2 * 5, 64), torch.zeros(2 * 5, 2), 5)
    project_parts(parts, 1, zeros(40, 128))
    decode_rows.look_up(torch.zeros(3, 1, dtype=torch.int64), zeros(9, 40), 2.0)
    decode_rows.take_likeliest(zeros(3, 204), torch.ones((), dtype=torch.bool))


def compile_rows(dtype: torch.dtype, width: int, norm: str, activation: str, rate: float) -> None:
    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype).requires_grad_()

    seed, rows = torch.zeros(1, dtype=torch.int64), (64, width)
    x, branch = zeros(*rows, dtype=dtype), zeros(*rows, dtype=dtype)
    tables = zeros(width), zeros(width), zeros(width) if norm == "layer" else None
    total, normed, _, _ = row_operators.add_norm(x, branch, *tables, seed, 1, rate, norm, 1e-5, True)
    (total.sum() + normed.sum()).backward()
    z = zeros(64, 4 * width, dtype=dtype)
    row_operators.activation(z, zeros(4 * width), seed, 2, rate, activation).sum().backward()


def compile_heads(dtype: torch.dtype, size: int, *, norm: bool = True, rotary: bool = True) -> None:
    rows = torch.zeros(2, 32, 2 * size, dtype=dtype).requires_grad_()
    weight = torch.ones(size).requires_grad_() if norm else None
    cos, sin = [torch.zeros(48, size // 2, dtype=dtype) if rotary else None] * 2
    place_heads(rows, 2, weight, 1e-5, cos, sin, 16).sum().backward()


def compile_joined(dtype: torch.dtype, width: int) -> None:
    memory, x = torch.zeros(2, 48, width, dtype=dtype), torch.zeros(2, 32, width, dtype=dtype).requires_grad_()
    join_norms(memory, x, 1e-5)[0].sum().backward()


def compile_muon(shape: tuple[int, int], parts: int) -> None:
    tensors, halves = [torch.zeros(shape) for _ in range(3)], [torch.zeros(shape, dtype=HALF) for _ in range(3)]
    number = tensors[0][0, 0]
    rates: dict[str, Any] = {"lr": number, "momentum": 0.9, "weight_decay": 0.1}
    step_in_kernels(tensors, tensors, tensors, [parts] * 3, **rates)
    step_in_kernels(tensors, halves, tensors, [parts] * 3, **rates, clip=(number, 1.0))


def compile_adam(rate: float | torch.Tensor, limit: float | None, decoupled: bool) -> None:
    wide, half = torch.zeros(64, 40), torch.zeros(64, 40, dtype=HALF)
    slots = [Slot(wide, half, wide, wide, wide[0, 0])] * 3
    take_steps(slots, wide[0, 0], limit, lr=rate, betas=(0.9, 0.999), eps=1e-8, decay=0.1, decoupled=decoupled)


def compile_further_variants() -> None:
    compile_at_once(64)
    for batch in (1, 3):
        rows, weight = torch.zeros(batch, 96, dtype=HALF), torch.zeros(40, 96, dtype=HALF)
        project(rows, weight, torch.zeros(40, dtype=HALF), "gelu")
    compile_adam(0.1, None, decoupled=False)
    compile_muon((512, 128), 1)
    compile_muon((40, 30), 1)
    compile_rows(HALF, 512, "layer", "relu", 0.1)
    compile_rows(HALF, 512, "rms", "squared_relu", 0.1)
    compile_rows(HALF, 410, "layer", "gelu", 0.1)
    compile_rows(HALF, 1024, "none", "identity", 0.1)
    compile_rows(torch.float32, 512, "layer", "gelu", 0.0)
    compile_rows(torch.float16, 8192, "rms", "relu", 0.0)
    for dtype in (HALF, torch.float32):
        compile_joined(dtype, 1000)
        compile_heads(dtype, 128)
        compile_heads(dtype, 41, rotary=False)
        compile_heads(dtype, 64, norm=False)
    compile_attention(HALF, 64, "lengths", dropout=0.1)
    compile_attention(HALF, 41, "limit")
    compile_attention(HALF, 128, "causal", dropout=0.1)
    compile_attention(HALF, 128, "window", gated=True)
    compile_attention(torch.float32, 32, "causal", gated=True)
    compile_attention(torch.float32, 32, "window", biased=True)
    for seen in MASKS:
        compile_attention(HALF, 64, seen, backward=False)
    compile_attention(HALF, 128, "limit", backward=False)
    compile_attention(HALF, 64, "limit", dropout=0.1, backward=False)


if __name__ == "__main__":
    compile_instead_of_running(int(sys.argv[1]))
    compile_attention(HALF, 64, "lengths", dropout=0.1, biased=True)
    compile_attention(HALF, 64, "lengths", gated=True)
    compile_at_once(16)
    compile_decoding(HALF, 64)
    if int(sys.argv[1]) >= 10 * CAPABILITY[0]:
        compile_early_starts(HALF)
    compile_rows(HALF, 128, "layer", "relu", 0.1)
    compile_heads(HALF, 64)
    compile_joined(HALF, 512)
    compile_muon((256, 128), 2)
    compile_adam(torch.zeros(()), 1.0, decoupled=True)
    if sys.argv[2:] == ["all"]:
        compile_further_variants()
    if sys.argv[1] == "90" and "forward_kernel" not in SEARCHED:
        raise SystemExit("no product was found in the assembly: the search is in vain")
    print("\n".join(sorted(COMPILED)))
