"""Saving a run to checkpoints and restoring it from them, with one process or several."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnemo.errors import MnemoError, shorten
from mnemo.files.json_file import load_json
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.recipes.recipe import TrainConfig
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage import sharded as shards
from mnemo.storage.checkpoint import Checkpoint, Reason
from mnemo.storage.weights import load_weights
from mnemo.training.background_save import BackgroundSave, copies, fits_twice
from mnemo.training.checkpoint_schedule import SaveClock
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
from mnemo.training.divergence import Diverged
from mnemo.training.health import Health, after_checkpoint, is_finite, judge, measure
from mnemo.training.mean_norm import MeanNorm
from mnemo.training.monitor import Monitor
from mnemo.training.optimizers import Average, NoAverage
from mnemo.training.processes import Alone, AnyWorld
from mnemo.training.run_progress import Best, Progress
from mnemo.training.training_log import TrainingLog

MEAN_NORM = "optimizer/mean_norm"
"""Name of the running mean of gradient norms among a checkpoint's tensors."""
ENVIRONMENT = {"torch": "torch version", "threads": "number of threads"}
"""Properties of a process that change the last digits of a run's numbers."""


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
    mean_norm: MeanNorm | None = None

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
            "training": training_tensors(self.model, self.optimizer, self.average, rank) | self._mean_norm_tensors(),
            "memory": memory_tensors(self.states, rank * accumulate),
        }

    def _mean_norm_tensors(self) -> dict[str, Tensor]:
        return {} if self.mean_norm is None else {MEAN_NORM: self.mean_norm.mean}

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
        tensors = whole_or_pieces(found, "training", self.model)
        if self.mean_norm is not None:
            # A run that was begun without it starts with no mean.
            self.mean_norm.mean.copy_(tensors.get(MEAN_NORM, torch.zeros(())))
        restore_training(
            tensors,
            self.model,
            self.optimizer,
            self.average,
            found.progress["average_count"],
            found.file("training"),
            world.rank if is_same_world else None,
        )
        if not is_same_world:
            seed_process(config.seed, world, found.step)


def remove_after(folder: Path, step: int, best: Best | None) -> None:
    """Remove the checkpoints after a step; `best`: the best one of that time."""
    run_folder.write_best(folder, best.step, best.loss) if best else run_folder.remove_best(folder)
    checkpoints.remove_after(folder, step)


class RunCheckpoints:
    """The checkpoints of one run folder."""

    def __init__(self, folder: Path, config: TrainConfig, world: AnyWorld, monitor: Monitor) -> None:
        self.folder, self.config, self.world, self.monitor = folder, config, world, monitor
        self.clock = SaveClock(config.checkpoint_minutes)
        self.last: Checkpoint | None = None
        """The newest complete checkpoint, saved or restored"""
        self._writing: BackgroundSave | None = None

    def restore_last(self, state: TrainingState, rows: Rows) -> Mapping[str, Any]:
        """Restore the newest checkpoint without damage, and return its JSON; {} if there is no checkpoint."""
        found = self._find_last()
        if found is None:
            return {}
        state.restore(found, rows, self.config, self.world)
        if not state.progress.healthy:  # saved by a version that did not judge checkpoints
            state.progress = replace(state.progress, healthy=(found.step,))
        self.last = found
        if found.num_ranks != self.world.size:
            self.monitor.note(
                f"rows of {found.num_ranks} processes continue in {self.world.size}: dropout draws new random numbers"
            )
        self._note_changed_logs(found)
        known = found.progress.get("environment")
        if isinstance(known, dict) and (note := environment_note(known)) is not None:
            self.monitor.note(note)
        self.monitor.note(f"continuing after step {state.progress.step:,}")
        return found.progress

    def _find_last(self) -> Checkpoint | None:

        def look() -> int | None:
            checkpoints.remove_partial(self.folder)
            found, problems = checkpoints.last_whole_checkpoint(self.folder)
            if found is None and problems:
                raise MnemoError(problems[0])
            if found is not None:
                found.require_overrides()
            for problem in problems:
                self.monitor.note(f"{problem}; continuing from an earlier checkpoint")
            return None if found is None else found.step

        step = self.world.main(look)
        return None if step is None else checkpoints.load_checkpoint(checkpoints.checkpoint_path(self.folder, step))

    def _note_changed_logs(self, found: Checkpoint) -> None:
        """Note lines of metrics that are not those that were written; the log itself reports lost ones."""
        for name in filter(found.has_log, found.logs):
            try:
                found.require_log(name)
            except MnemoError as error:
                self.monitor.note(f"{error}; training does not depend on it")

    def find_whole(self, steps: Sequence[int]) -> Checkpoint | None:
        """The last of some checkpoints that is whole, or None."""
        self.finish()

        def look() -> int | None:
            return next((step for step in reversed(steps) if _is_whole(self.folder, step)), None)

        step = self.world.main(look)
        return None if step is None else checkpoints.load_checkpoint(checkpoints.checkpoint_path(self.folder, step))

    def go_back(self, found: Checkpoint, best: Best | None) -> None:
        """Make an earlier checkpoint the last one: remove those after it."""
        self.last = found

        self.world.main(lambda: remove_after(self.folder, found.step, best))

    def describe(self) -> str:
        """The state of the folder, for messages."""
        with suppress(MnemoError):
            self.finish()
        kept = "no checkpoint" if self.last is None else f"the checkpoint of step {self.last.step}"
        return f"{self.folder} keeps {kept}"

    def save(self, state: TrainingState, log: TrainingLog, reason: Reason) -> None:
        """Save metrics, then the checkpoint that holds their sizes; record the best one; remove old ones last.

        A single process writes the checkpoint in the background: `finish` waits for it and raises its errors. Several
        processes write together before they go on.
        """
        begin = time.monotonic()
        self.finish()
        state.progress, _ = log.fetch(state.progress)
        saved = self.last
        if saved is None or saved.step != state.progress.step:
            with log.clock.pause():
                health = self._judge_if_planned(state, reason)
                if health is not None:
                    self._write(state, {**_json(state, log, reason), "health": health.to_json()}, begin)
            return
        if saved.progress["evaluated"] != state.progress.evaluated:
            progress = _json(state, log, reason)
            self.last = self.world.main(lambda: checkpoints.save_progress(saved, progress))
        self.world.main(lambda: self._keep(state.progress))

    def _judge_if_planned(self, state: TrainingState, reason: Reason) -> Health | None:
        """The health of a state; None if it is not finite at a moment that the clock chose.

        The next update shows that divergence too, at a step that does not depend on the clock.
        """
        try:
            return self._judge(state)
        except Diverged:
            if reason == "clock":
                return None
            raise

    def _judge(self, state: TrainingState) -> Health:
        """The health of a state that is to be saved; raise `Diverged` if it is not finite."""
        progress = state.progress
        norms = measure(state.model, state.optimizer, state.states, self.world)
        if not is_finite(norms):
            message = f"weights, optimizer moments or memories are not finite after step {progress.step}"
            raise Diverged(message, progress.step, progress.cursor)
        health = judge(norms, progress, self.config)
        if progress.step % self.config.checkpoint_every == 0:
            state.progress = after_checkpoint(progress, health, self.config)
        if health.problem is not None and progress.healthy:
            kept = f"the checkpoint of step {progress.healthy[-1]:,} is kept as well"
            self.monitor.note(f"step {progress.step:,}: {health.problem}; {kept}")
        return health

    def _write(self, state: TrainingState, progress: dict[str, Any], begin: float) -> None:
        """Write a new checkpoint, in the background if that is safe."""
        tensors, done = state.tensors(self.world.rank, self.config.accumulate), state.progress

        def write(parts: dict[str, dict[str, Tensor]]) -> Checkpoint:
            found = checkpoints.load_checkpoint(save_together(self.folder, progress, parts, self.world))
            self.world.main(lambda: self._keep(done))
            self.clock.saved(time.monotonic() - begin)
            return found

        if isinstance(self.world, Alone) and fits_twice(tensors):
            own = copies(tensors)
            self._writing = BackgroundSave(lambda: write(own))
        else:
            self.last = write(tensors)

    def is_late(self) -> bool:
        """Whether so much time has passed since the last checkpoint that another one is due."""
        return self._writing is None and self.clock.is_late()

    def finish(self) -> None:
        """Wait for a checkpoint that is written in the background; raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self.last = writing.result()

    def raise_failure(self) -> None:
        """Raise the error of a background save that has failed, without waiting for one that still runs."""
        if self._writing is not None and self._writing.is_done:
            self.finish()

    def _keep(self, progress: Progress) -> None:
        """Record the best checkpoint, and remove old ones that a rollback does not need."""
        best = progress.best
        if best is not None:
            run_folder.write_best(self.folder, best.step, best.loss)
        needed = {step for healthy in progress.healthy for step in (healthy, _best_at(self.folder, healthy))}
        checkpoints.prune(self.folder, self.config.keep, needed | {best.step if best else None})


def _json(state: TrainingState, log: TrainingLog, reason: Reason) -> dict[str, Any]:
    return {**state.to_json(log.seconds()), **log.sizes(), "reason": reason, "environment": environment()}


def _is_whole(folder: Path, step: int) -> bool:
    try:
        checkpoints.load_checkpoint(checkpoints.checkpoint_path(folder, step)).verify()
    except MnemoError:
        return False
    return True


def _best_at(folder: Path, step: int) -> int | None:
    """The step that was the best when the checkpoint of a step was saved; a rollback makes it the best again."""
    try:
        best = load_json(checkpoints.checkpoint_path(folder, step) / checkpoints.PROGRESS).get("best")
    except MnemoError:  # damaged since then: a rollback will not use it
        return None
    return best[0] if best else None


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


def environment() -> dict[str, Any]:
    """Stored in every checkpoint."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def environment_note(saved: Mapping[str, Any]) -> str | None:
    """One line on what differs from the process that saved a checkpoint; None if nothing does, or it is unknown."""
    now = environment()
    changed = [
        f"{ENVIRONMENT[name]} {shorten(str(saved[name]))} -> {now[name]}"
        for name in ENVIRONMENT
        if name in saved and saved[name] != now[name]
    ]
    if not changed:
        return None
    return f"{', '.join(changed)}: the last digits can differ from those of an uninterrupted run"
