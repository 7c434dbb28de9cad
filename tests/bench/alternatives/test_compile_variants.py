"""All variants of a kernel are compiled before the autotuner times the first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
TUNED = """
import sys
from types import ModuleType
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from mnemo.bench.alternatives.compile_variants import compile_variants_at_once

class AbsentGPU:
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

run, compiled_when_timed = JITFunction.run, []
JITFunction.run = lambda *args, warmup, **options: run(*args, warmup=True, **options) if warmup else None
driver.set_active(AbsentGPU())

def time_variant(launch, quantiles):
    (kernels, *_), = add.fn.fn.device_caches.values() or [[{}]]
    compiled_when_timed.append(sum(isinstance(each, CompiledKernel) for each in kernels.values()))
    return [1.0] * 3

def leave_out(variants, named, **options):
    return [each for each in variants if each.kwargs["SIZE"] < 512]

@triton.autotune(
    [triton.Config({"SIZE": size, "BROKEN": size == 16}) for size in (32, 64, 16, 128, 512)]
    + [triton.Config({"SIZE": 256, "BROKEN": False}, pre_hook=lambda named: None)],
    key=["n"], prune_configs_by={"early_config_prune": leave_out}, do_bench=time_variant,
)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["SIZE"] == 0})
@triton.jit
def add(x, n, SIZE: tl.constexpr, BROKEN: tl.constexpr, EVEN: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.static_assert(not BROKEN)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

sys.modules["fla.ops"] = ModuleType("fla.ops")
sys.modules["fla.ops"].add = add
if sys.argv[1] == "at once":
    compile_variants_at_once()
add[(1,)](torch.zeros(64), 64)
add[(1,)](torch.zeros(64), 64)
print(*compiled_when_timed)
"""
"""Of six variants, one is left out, one does not compile, and one has a function that runs before it. Nothing is
launched, so that variants are compiled only in advance."""


@pytest.mark.parametrize(("how", "compiled"), [("at once", "3 3 3 3 3"), ("in turn", "0 0 0 0 0")])
def test_variants_are_compiled_before_the_first_is_timed(how: str, compiled: str, tmp_path: Path) -> None:
    script = tmp_path / "tuned.py"
    script.write_text(TUNED)
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script, how], capture_output=True, text=True, env=os.environ | own)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == compiled
