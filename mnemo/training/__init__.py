"""Training: segment after segment of a stream, with a state that is carried along, and exact resume.

    folder = create_run(recipe, Path("runs/mine"))
    outcome = train(folder)        # starts the run, or continues it from its last checkpoint

A checkpoint holds everything that the next step depends on, and `metrics.jsonl` is cut back to its step. So a run that
was killed at any moment and resumed writes the same metrics, bit for bit, as an uninterrupted run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names
from mnemo.training.monitor import Forwarding, Monitor, Status, Unwatched

if TYPE_CHECKING:
    from mnemo.training.create_and_train import create_run, train
    from mnemo.training.data import Data, Scored
    from mnemo.training.divergence import Diverged
    from mnemo.training.trainer import Outcome

__all__ = [
    "Data",
    "Diverged",
    "Forwarding",
    "Monitor",
    "Outcome",
    "Scored",
    "Status",
    "Unwatched",
    "create_run",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.training.create_and_train": ("create_run", "train"),
        "mnemo.training.data": ("Data", "Scored"),
        "mnemo.training.divergence": ("Diverged",),
        "mnemo.training.trainer": ("Outcome",),
    },
)
