"""Train, measure and sample small memory transformers, in a minute and a half on two CPU cores.

Trains the same small model with and without memory on a task that needs the previous segment, every kind of memory on
a shorter task, and a byte model on the source code of your Python installation; measures how much memory helps; writes
a sample and a report, whose path is the last line. On a slow or busy machine all models of a comparison train fewer
steps, equally many; --minutes gives them more time. Needs no download; the next demo replaces its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnemo.errors import require_positive


@dataclass(frozen=True, kw_only=True)
class Args:
    out: Path = Path("runs/demo")
    """Folder for the demo's runs and its report; an earlier demo there is replaced."""
    minutes: float = 3.0
    """Time for the whole demo. If it is too short, all models of a comparison train fewer steps, equally many."""
    quick: bool = False
    """A few steps of everything, to test that it works; the models learn nothing."""


def run(args: Args) -> int:
    require_positive("--minutes", args.minutes)
    from mnemo.cli.demo_phases import show_demo

    show_demo(args)
    print(args.out / "report.html")
    return 0
