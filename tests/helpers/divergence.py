"""Training that diverges at chosen batches, and that is killed at a chosen update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from mnemo.storage import run_folder, run_identity
from mnemo.storage.checkpoint import Checkpoint
from mnemo.training.trainer import Trainer
from mnemo.training.weight_update import Update

Fault = Callable[[int], float]
"""The factor of the loss for a batch, by its number in the first epoch: nan ruins the weights as well."""


class Killed(Exception):
    """Ends training in the middle, as a kill would."""


def nan_at(*numbers: int) -> Fault:
    return lambda number: float("nan") if number in numbers else 1.0


def spike_at(begin: int, end: int, factor: float = 10.0) -> Fault:
    return lambda number: factor if begin <= number < end else 1.0


def drift_from(begin: int, end: int, growth: float = 1.5) -> Fault:
    return lambda number: growth ** (number - begin) if begin <= number < end else 1.0


def diverging(fault: Fault, kill_at: int | None = None) -> Any:
    """A context in which batches are faulty, and the update of this number, counted from 1, is not completed."""
    real, count = Trainer._update, 0

    def update(self: Trainer, *args: Any) -> Update:
        nonlocal count
        count += 1
        if count == kill_at:
            raise Killed
        done = real(self, *args)
        cursor = self.state.progress.cursor
        factor = fault(cursor["step"]) if cursor["epoch"] == 0 else 1.0
        if factor != factor:
            ruin(self)
        return done if factor == 1.0 else done._replace(loss=done.loss * factor)

    return mock.patch.object(Trainer, "_update", update)


@torch.no_grad()
def ruin(trainer: Trainer) -> None:
    for parameter in trainer.model.parameters():
        parameter.mul_(float("nan"))


def last(folder: Path) -> Checkpoint:
    found = run_folder.last_checkpoint(folder)
    assert found is not None
    return found


def contents(folder: Path) -> dict[str, Any]:
    """Metrics and the last checkpoint of a run, without times."""
    end = last(folder)
    volatile = ("seconds", "timing_bytes", "files", "reason", "checksums", "logs", run_identity.FIELD)
    progress = {name: value for name, value in end.progress.items() if name not in volatile}
    tensors = {
        f"{part}/{name}": tensor.flatten().view(torch.uint8).tolist()
        for part in ("weights", "training", "memory")
        for name, tensor in end.tensors(part).items()
    }
    return {"metrics": (folder / "metrics.jsonl").read_text(), "progress": progress, **tensors}
