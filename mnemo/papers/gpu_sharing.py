"""Whether the models of several processes run side by side on a GPU, through NVIDIA's MPS, or take turns."""

from __future__ import annotations

import ctypes

import torch

DRIVERS = ("libcuda.so.1", "nvcuda.dll")
MPS_ENABLED = 133
"""CU_DEVICE_ATTRIBUTE_MPS_ENABLED: contexts that are created on the device are shared via MPS."""


def runs_side_by_side(device: torch.device) -> bool | None:
    """Whether MPS shares the GPU among processes; None if the driver does not say, or there is no NVIDIA GPU."""
    if device.type != "cuda" or (driver := _driver()) is None:
        return None
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    handle, answer = ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(handle), ordinal)
        or driver.cuDeviceGetAttribute(ctypes.byref(answer), MPS_ENABLED, handle)
    )
    return None if failed else bool(answer.value)


def advice(device: torch.device) -> str | None:
    """What to say before several models train on a GPU at once, if they will take turns on it."""
    if runs_side_by_side(device) is not False:
        return None
    return (
        "NVIDIA's MPS is not running, so that models take turns on the GPU instead of running side by side, which "
        "makes small models slow: nvidia-cuda-mps-control -d starts it"
    )


def _driver() -> ctypes.CDLL | None:
    for name in DRIVERS:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
