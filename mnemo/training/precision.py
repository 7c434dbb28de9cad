"""Half precision, and processors whose bf16 instructions fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from mnemo.training.monitor import Monitor

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """A context that computes in half precision if `precision` says so; weights keep their type."""
    dtype = AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def state_dtype(precision: str) -> torch.dtype | None:
    """The type of memories, which is that of the computation; None for the type of the weights."""
    return AUTOCAST.get(precision)


def gradient_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler | None:
    """The loss scaler that fp16 needs; None for other precisions."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


@contextmanager
def safe_kernels(precision: str, device: torch.device, monitor: Monitor) -> Iterator[None]:
    """Disable oneDNN for bf16 where it crashes: some virtual machines announce AMX but do not support it."""
    before = torch.backends.mkldnn.enabled
    if precision == "bf16" and device.type == "cpu" and not survives(PROBE):
        monitor.note("this processor's bf16 instructions fail: continuing without them, slowly; fp32 is faster here")
        torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@cache
def survives(program: str) -> bool:
    """Whether a Python program ends without an error, tried in a separate process."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
