"""Synthetic tasks whose answers depend on earlier segments, generated from a seed with fixed splits.

    stream = TaskStream(Copy(), batch=32, segment=24)       # segments to train on
    tokens, targets = next(samples(Copy(), "test", 1000))   # whole samples

A task is a frozen dataclass; `DataConfig.task` takes any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.data.tasks.quadratic import Quadratic
from mnemo.data.tasks.repeat import Copy, Reverse
from mnemo.data.tasks.retrieval import MultiQuery, Passkey, Retrieval
from mnemo.data.tasks.task import Task, TaskSplit
from mnemo.lazy import lazy_names

if TYPE_CHECKING:
    from mnemo.data.tasks.recall import RecallStream
    from mnemo.data.tasks.task_stream import TaskStream, samples, segments, texts

AnyTask = Copy | Reverse | Retrieval | Quadratic | MultiQuery | Passkey
"""Every task that a recipe can use."""

__all__ = [
    "AnyTask",
    "Copy",
    "MultiQuery",
    "Passkey",
    "Quadratic",
    "RecallStream",
    "Retrieval",
    "Reverse",
    "Task",
    "TaskSplit",
    "TaskStream",
    "samples",
    "segments",
    "texts",
]

__getattr__ = lazy_names(
    __name__,
    {
        "mnemo.data.tasks.recall": ("RecallStream",),
        "mnemo.data.tasks.task_stream": ("TaskStream", "samples", "segments", "texts"),
    },
)
