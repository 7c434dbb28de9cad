"""Saving a run to checkpoints and restoring it from them, with one process or several."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.recipes.recipe import TrainConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage import sharded as shards
from mnemo.storage.checkpoint import Checkpoint
from mnemo.storage.weights import load_weights
from mnemo.training.checkpoint_tensors import (
    memory_of_rows,
    memory_tensors,
    restore_memory,
    restore_training,
    seed_process,
    training_tensors,
    whole_or_pieces,
)
from mnemo.training.distributed import Rows
from mnemo.training.monitor import Monitor
from mnemo.training.optimizers import Average, NoAverage
from mnemo.training.processes import Alone, AnyWorld
from mnemo.training.run_progress import Best, Progress
from mnemo.training.training_log import TrainingLog


@dataclass
class TrainingState:
    """Everything that the next step depends on. `states` and `progress` are replaced, never changed in place."""

    model: Model
    optimizer: torch.optim.Optimizer
    average: Average | NoAverage
    scaler: torch.amp.GradScaler | None
    states: tuple[State, ...]
    """The memories of each part of this process's rows"""
    progress: Progress

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Everything that is not a tensor; `seconds` is the time trained so far."""
        return {
            **replace(self.progress, seconds=seconds).to_json(),
            "average_count": self.average.count,
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    def tensors(self, rank: int, accumulate: int) -> dict[str, dict[str, Tensor]]:
        """The tensors by part of a checkpoint and name."""
        return {
            "weights": self.model.state_dict(),
            "training": training_tensors(self.model, self.optimizer, self.average, rank),
            "memory": memory_tensors(self.states, rank * accumulate),
        }

    def restore(self, found: Checkpoint, rows: Rows, config: TrainConfig, world: AnyWorld) -> None:
        """Restore a checkpoint, of as many processes as now or of others."""
        self.progress = Progress.from_json(found.progress, found.path)
        load_weights(self.model, whole_or_pieces(found, "weights", self.model), found.file("weights"))
        memory = memory_of_rows(found, rows, config.accumulate)
        self.states = restore_memory(memory, self.states, found.file("memory"))
        if self.scaler is not None:
            self.scaler.load_state_dict(found.progress["scaler"])
        # Last, because it sets the random generators.
        is_same_world = found.num_ranks == world.size
        restore_training(
            whole_or_pieces(found, "training", self.model),
            self.model,
            self.optimizer,
            self.average,
            found.progress["average_count"],
            found.file("training"),
            world.rank if is_same_world else None,
        )
        if not is_same_world:
            seed_process(config.seed, world, found.step)


class RunCheckpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, config: TrainConfig, world: AnyWorld, monitor: Monitor) -> None:
        self.folder, self.config, self.world, self.monitor = folder, config, world, monitor
        self.last: Checkpoint | None = None
        """The newest checkpoint, saved or restored"""

    def restore_last(self, state: TrainingState, rows: Rows) -> Mapping[str, Any]:
        """Restore the newest checkpoint without damage, and return its JSON; {} if there is no checkpoint."""
        found = self._find_last()
        if found is None:
            return {}
        state.restore(found, rows, self.config, self.world)
        self.last = found
        if found.num_ranks != self.world.size:
            self.monitor.note(
                f"rows of {found.num_ranks} processes continue in {self.world.size}: dropout draws new random numbers"
            )
        self._note_changed_logs(found)
        self.monitor.note(f"continuing after step {state.progress.step:,}")
        return found.progress

    def _find_last(self) -> Checkpoint | None:

        def look() -> int | None:
            checkpoints.remove_partial(self.folder)
            found, problems = checkpoints.last_whole_checkpoint(self.folder)
            if found is None and problems:
                raise MnemoError(problems[0])
            for problem in problems:
                self.monitor.note(f"{problem}; continuing from an earlier checkpoint")
            return None if found is None else found.step

        step = self.world.main(look)
        return None if step is None else checkpoints.load_checkpoint(checkpoints.checkpoint_path(self.folder, step))

    def _note_changed_logs(self, found: Checkpoint) -> None:
        for name in found.logs:
            try:
                found.require_log(name)
            except MnemoError as error:
                self.monitor.note(f"{error}; training does not depend on them")

    def describe(self) -> str:
        """The state of the folder, for messages."""
        kept = "no checkpoint" if self.last is None else f"the checkpoint of step {self.last.step}"
        return f"{self.folder} keeps {kept}"

    def is_due(self, progress: Progress) -> bool:
        return progress.step % self.config.checkpoint_every == 0 or progress.is_best

    def save(self, state: TrainingState, log: TrainingLog) -> None:
        """Save metrics, then the checkpoint that holds their sizes; record the best one; remove old ones last."""
        state.progress, _ = log.fetch(state.progress)
        saved = self.last
        if saved is None or saved.step != state.progress.step:
            with log.clock.pause():
                tensors = state.tensors(self.world.rank, self.config.accumulate)
                path = save_together(self.folder, _json(state, log), tensors, self.world)
            self.last = checkpoints.load_checkpoint(path)
        elif saved.progress["evaluated"] != state.progress.evaluated:
            self.last = self.world.main(lambda: checkpoints.save_progress(saved, _json(state, log)))
        self.world.main(lambda: self._keep(state.progress.best))

    def _keep(self, best: Best | None) -> None:
        """Record the best checkpoint, and remove old ones."""
        if best is not None:
            run_folder.write_best(self.folder, best.step, best.loss)
        checkpoints.prune(self.folder, self.config.keep, best.step if best else None)


def _json(state: TrainingState, log: TrainingLog) -> dict[str, Any]:
    return {**state.to_json(log.seconds()), **log.sizes()}


def save_together(folder: Path, progress: dict[str, Any], parts: dict[str, dict[str, Tensor]], world: AnyWorld) -> Path:
    """Write the checkpoint of `progress["step"]` with all processes.

    The main process gives the checkpoint its name when all have written their parts. If one process fails, all fail,
    and earlier checkpoints stay unchanged.
    """
    if isinstance(world, Alone):
        return checkpoints.save_checkpoint(folder, progress, parts)
    target = checkpoints.checkpoint_path(folder, progress["step"])
    partial = Path(world.main(lambda: str(checkpoints.begin_checkpoint(target))))
    tensors = {name: tensor for part in parts.values() for name, tensor in part.items()}

    def write() -> dict[str, str]:
        with checkpoints.saving(target):
            return shards.write(partial, tensors, world.group)

    try:
        checksums = shards.gather(world.together(write), world.group)
        whole = {**progress, "ranks": world.size}
        world.main(lambda: checkpoints.commit_checkpoint(partial, target, whole, checksums))
    finally:
        if world.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
    return target
