"""A page that shows runs side by side: curves, bars, memory sweeps, plans, samples, configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names
from mnemo.report.run_files import is_run

if TYPE_CHECKING:
    from mnemo.report.runs_report import write_report

__all__ = [
    "is_run",
    "write_report",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.report.runs_report": ("write_report",),
    },
)
