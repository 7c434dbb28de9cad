from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
KERNELS = {
    "prepare_kernel",
    "position_kernel",
    "forward_kernel",
    "delta_kernel",
    "key_value_kernel",
    "position_query_kernel",
    "query_kernel",
    "relation_kernel",
    "sum_kernel",
    "_attend_part",
    "_put_together",
    "_add_norm",
    "_advance",
}


@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=pytest.mark.thorough)])
def test_every_kernel_compiles(capability: int, tmp_path: Path) -> None:
    program = Path(__file__).with_name("compile_kernels.py")
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(program), str(capability)], capture_output=True, text=True, env=os.environ | own
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(done.stdout.split()) == KERNELS
