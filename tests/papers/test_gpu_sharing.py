"""The question to NVIDIA's driver; its answers on a GPU are those of the driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from mnemo.papers import gpu_sharing
from mnemo.papers.gpu_sharing import MPS_ENABLED, advice, runs_side_by_side

GPU = torch.device("cuda", 1)


class Driver:
    def __init__(self, enabled: int, fails_at: str | None = None) -> None:
        self.enabled, self.fails_at = enabled, fails_at

    def _result(self, function: str) -> int:
        return 100 if function == self.fails_at else 0

    def cuInit(self, flags: int) -> int:
        return self._result("cuInit")

    def cuDeviceGet(self, handle: Any, ordinal: int) -> int:
        handle._obj.value = 40 + ordinal
        return self._result("cuDeviceGet")

    def cuDeviceGetAttribute(self, answer: Any, attribute: int, handle: ctypes.c_int) -> int:
        assert (attribute, handle.value) == (MPS_ENABLED, 41)
        answer._obj.value = self.enabled
        return self._result("cuDeviceGetAttribute")


@pytest.mark.parametrize("enabled", [0, 1])
def test_the_driver_tells_if_processes_share_the_gpu(enabled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "_driver", lambda: Driver(enabled))
    assert runs_side_by_side(GPU) is bool(enabled)
    assert runs_side_by_side(torch.device("cpu")) is None
    said = advice(GPU)
    assert said is None if enabled else said is not None and "nvidia-cuda-mps-control -d" in said


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGet", "cuDeviceGetAttribute"])
def test_a_driver_that_does_not_know_is_no_reason_for_advice(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "_driver", lambda: Driver(0, fails_at=function))
    assert runs_side_by_side(GPU) is None and advice(GPU) is None


def test_no_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "DRIVERS", ("no-such-driver.so",))
    assert runs_side_by_side(GPU) is None


@pytest.mark.gpu
def test_the_gpu_answers() -> None:
    assert runs_side_by_side(torch.device("cuda")) in (True, False)
