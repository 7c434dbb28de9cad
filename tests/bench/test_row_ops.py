"""What the measurement of kernels on rows computes; times need a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from mnemo.bench import row_ops
from mnemo.bench.row_ops import SHAPES, Shape, cases, line
from mnemo.model.layers.rows import PLAIN, FusedRows

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.native


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_both_contenders_compute_the_same(shape: Shape) -> None:
    for case in cases(replace(shape, rows=6, dim=24, inner=40, rate=0.0), DEVICE):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            found, wanted = case.run(FusedRows()), case.run(PLAIN)
        for got, want in zip(found, wanted, strict=True):
            # With autocast, PyTorch's own RMS norm returns fp32 on a GPU.
            torch.testing.assert_close(got, want, rtol=0.02, atol=0.02, check_dtype=False)
        assert case.leaves and case.name in line(case.name, case, (1.0, 2.0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["row_ops"])
    with pytest.raises(SystemExit):
        row_ops.main()
    assert "CUDA device" in capsys.readouterr().err
