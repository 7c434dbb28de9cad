"""The only tolerances of the test suite. They do not loosen on slow or busy machines."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Tolerance(NamedTuple):
    rtol: float
    atol: float


TOLERANCES = {
    torch.float64: Tolerance(rtol=1e-10, atol=1e-10),
    torch.float32: Tolerance(rtol=1e-5, atol=1e-5),
    torch.bfloat16: Tolerance(rtol=2e-2, atol=2e-2),
    torch.float16: Tolerance(rtol=2e-3, atol=2e-3),
}
PARITY = 1e-9
"""Largest error against reference files of published code, relative to max(1, largest value)."""
MUON = 5e-2
"""Relative norm of the error of orthogonal steps iterated in bfloat16, on any device (a CPU: 1.4e-2 to 2.7e-2)."""
LEAK = 1e-12
"""Largest change of an earlier loss when a later token changes, with adaptive softmax; exactly 0 without."""


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def assert_close(actual: torch.Tensor, expected: torch.Tensor, **options: Any) -> None:
    """Equal up to the table's tolerance for the dtype (exactly, for integers)."""
    tolerance = TOLERANCES.get(expected.dtype, Tolerance(0.0, 0.0))
    torch.testing.assert_close(actual, expected, rtol=tolerance.rtol, atol=tolerance.atol, **options)
