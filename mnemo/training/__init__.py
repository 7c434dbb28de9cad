"""Training: segment after segment of a stream, with a state that is carried along, and exact resume.

    folder = create_run(recipe, Path("runs/mine"))
    outcome = train(folder)        # starts the run, or continues it from its last checkpoint

A checkpoint holds everything that the next step depends on, and `metrics.jsonl` is cut back to its step. So a run that
was killed at any moment and resumed writes the same metrics, bit for bit, as an uninterrupted run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.lazy import lazy_names
from mnemo.training.monitor import Monitor, Status, Unwatched

if TYPE_CHECKING:
    from mnemo.training.create_and_train import create_run, train
    from mnemo.training.data import Data, Scored, open_data
    from mnemo.training.divergence import Diverged
    from mnemo.training.run_progress import Best
    from mnemo.training.trainer import Outcome
    from mnemo.training.weight_update import Update, fresh_states, segment_loss, split_rows, update

__all__ = [
    "Best",
    "Data",
    "Diverged",
    "Monitor",
    "Outcome",
    "Scored",
    "Status",
    "Unwatched",
    "Update",
    "create_run",
    "fresh_states",
    "open_data",
    "segment_loss",
    "split_rows",
    "train",
    "update",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.training.create_and_train": (
            "create_run",
            "train",
        ),
        "mnemo.training.data": (
            "Data",
            "Scored",
            "open_data",
        ),
        "mnemo.training.divergence": ("Diverged",),
        "mnemo.training.run_progress": ("Best",),
        "mnemo.training.trainer": ("Outcome",),
        "mnemo.training.weight_update": (
            "Update",
            "fresh_states",
            "segment_loss",
            "split_rows",
            "update",
        ),
    },
)
