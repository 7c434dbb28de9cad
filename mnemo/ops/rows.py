"""Whether residual sums, norms, dropout and activations run in fused kernels. The plain path is `model.layers.rows`."""

from __future__ import annotations

import os

import torch

from mnemo import ops


def row_obstacle(
    device: torch.device, dtype: torch.dtype, width: int, norm: str | None, activation: str | None
) -> str | None:
    """Why rows of a width are not computed in fused kernels; None if they are. `mnemo.ops.using` applies to them too.

    The first call for a device tests the kernels of the norm and of the activation that are given.
    """
    impl = ops.chosen()
    if impl not in ("auto", "fused"):
        return f"{impl} was chosen"
    interpreted = impl == "fused" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return f"fused kernels need a CUDA device, not {device.type}"
    if not ops.HAS_TRITON:
        return "Triton is not installed"
    from mnemo.ops.cuda.row_dispatch import device_obstacle, rows_obstacle

    refused = rows_obstacle(dtype, width)
    if refused is not None or interpreted:
        return refused
    return device_obstacle(device, dtype, width, norm, activation)


def joining_obstacle(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Why norms of a memory and of a segment are not written into one tensor, where `row_obstacle` is None; None if
    they are. The first call for a device tests the kernel."""
    if device.type != "cuda":
        return None
    from mnemo.ops.cuda.join_norms import TEST

    return TEST.obstacle(device, dtype, width)
