"""Half precision, and processors that claim instructions which they then refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from mnemo.training.watch import Monitor

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Compute in half precision where it is asked for; weights keep their type."""
    dtype = AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def state_dtype(precision: str) -> torch.dtype | None:
    """What layers remember in: what they compute in; None for the weights' type."""
    return AUTOCAST.get(precision)


@contextmanager
def safe_kernels(precision: str, device: torch.device, monitor: Monitor) -> Iterator[None]:
    """Some virtual machines announce AMX and die of it: bf16 then runs without oneDNN, slowly, but runs."""
    before = torch.backends.mkldnn.enabled
    if precision == "bf16" and device.type == "cpu" and not survives(PROBE):
        monitor.note("this processor's bf16 instructions fail: going on without them, slowly; fp32 is faster here")
        torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@cache
def survives(program: str) -> bool:
    """Whether a Python program ends well, tried in a process of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
