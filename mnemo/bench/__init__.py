"""Compare the speed of Mnemo and of the published formulations in one process, after checking that both agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.bench.cases import CASES, SECTIONS, Case, check_names, find_cases
from mnemo.lazy import lazy_names

if TYPE_CHECKING:
    from mnemo.bench.comparison import compare, machine
    from mnemo.bench.results import HEADERS, Comparison, Measured, long_range
    from mnemo.bench.timing import Timing

__all__ = [
    "CASES",
    "HEADERS",
    "SECTIONS",
    "Case",
    "Comparison",
    "Measured",
    "Timing",
    "check_names",
    "compare",
    "find_cases",
    "long_range",
    "machine",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.bench.comparison": (
            "compare",
            "machine",
        ),
        "mnemo.bench.results": (
            "HEADERS",
            "Comparison",
            "Measured",
            "long_range",
        ),
        "mnemo.bench.timing": ("Timing",),
    },
)
