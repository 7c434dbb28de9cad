"""Measure the time from the start of a process to the end of its first update.

A fresh process is started twice with caches of compilers in a new folder: first empty, then filled by the first one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from mnemo.errors import MnemoError
from mnemo.start import starting

SECONDS = 400
"""Limit of one process."""


def measure_start(device: str, miniature: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds since the start by phase, with empty and with filled caches."""
    with tempfile.TemporaryDirectory(prefix="mnemo-start-") as folder:
        return _start(device, miniature, folder), _start(device, miniature, folder)


def _start(device: str, miniature: bool, caches: str) -> dict[str, float]:
    own = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}
    own |= {"XDG_CACHE_HOME": caches}  # passed tests of kernels
    begin = time.time()
    command = [sys.executable, "-m", __name__, device, str(int(miniature)), str(begin)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=SECONDS)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0 or not lines:
        raise MnemoError(f"the first step failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return json.loads(lines[-1])


def first_step(device: str, miniature: bool, begin: float) -> dict[str, float]:
    """Seconds since `begin` at the end of each phase.

    Modules are imported, kernels tested, the model is built, its update compiled and warmed up, recorded, and done for
    the first time. An update that is not recorded has no phases of its own for that.
    """
    found: dict[str, float] = {}

    def end(phase: str) -> None:
        found[phase] = time.time() - begin

    import torch

    from mnemo.bench.gpu_table.work import case_training
    from mnemo.inference.cuda_graph import CudaRecorder
    from mnemo.model import attention_obstacle
    from mnemo.training.precision import state_dtype
    from mnemo.training.recorded_update import WARMUP_UPDATES
    from mnemo.training.training_speed import RandomUpdates

    class TimedRecorder(CudaRecorder):
        def warm(self, function: Callable[[], Any]) -> None:
            super().warm(function)
            torch.cuda.synchronize(self.device)
            end("compiled")

        def record(self, function: Callable[[], Any]) -> Any:
            recorded = super().record(function)
            end("recorded")
            return recorded

    end("imported")
    place = torch.device(device)
    work = case_training("xl-base", place, miniature)
    attention_obstacle(work.model, place, state_dtype(work.config.precision) or torch.float32)
    end("tested")
    recorder = TimedRecorder(place, warmup_calls=WARMUP_UPDATES) if place.type == "cuda" else None
    updates = RandomUpdates(work.model, work.config, work.draw, recorder)
    end("built")
    updates.run(1)
    end("first_step")
    return found


if __name__ == "__main__":
    with starting():  # as `mnemo train` does
        print(json.dumps(first_step(sys.argv[1], sys.argv[2] == "1", float(sys.argv[3]))))
