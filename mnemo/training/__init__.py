"""Training: streams of text read segment by segment, a state that is carried along, and exact resume.

    folder = create_run(recipe, Path("runs/mine"))
    outcome = train(folder)        # starts the run, or goes on where its last checkpoint left it

A checkpoint holds everything that the next step depends on, and `metrics.jsonl` is cut back to it, so a run that was
killed at any moment and resumed writes the same metrics, bit for bit, as one that was left alone.
"""

from __future__ import annotations

from mnemo.training.data import Data, Scored, open_data
from mnemo.training.run import create_run, train
from mnemo.training.snapshot import Best
from mnemo.training.step import Update, fresh_states, segment_loss, split_rows, update
from mnemo.training.trainer import Diverged, Outcome
from mnemo.training.watch import Monitor, Status, Unwatched

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
