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

from mnemo.errors import MnemoError

SECONDS = 400
"""Limit of one process."""


def measure_start(device: str, miniature: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds since the start by phase, with empty and with filled caches."""
    with tempfile.TemporaryDirectory(prefix="mnemo-start-") as folder:
        return _start(device, miniature, folder), _start(device, miniature, folder)


def _start(device: str, miniature: bool, caches: str) -> dict[str, float]:
    own = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}
    begin = time.time()
    command = [sys.executable, "-m", __name__, device, str(int(miniature)), str(begin)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=SECONDS)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode != 0 or not lines:
        raise MnemoError(f"the first step failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return json.loads(lines[-1])


def first_step(device: str, miniature: bool, begin: float) -> dict[str, float]:
    """Seconds since `begin` when modules were imported, the model built, and the first update done."""
    found = {}
    import torch

    from mnemo.bench.gpu_table.work import case_training
    from mnemo.training.training_speed import RandomUpdates

    found["imported"] = time.time() - begin
    work = case_training("xl-base", torch.device(device), miniature)
    updates = RandomUpdates(work.model, work.config, work.draw)
    found["built"] = time.time() - begin
    updates.run(1)
    found["first_step"] = time.time() - begin
    return found


if __name__ == "__main__":
    print(json.dumps(first_step(sys.argv[1], sys.argv[2] == "1", float(sys.argv[3]))))
