"""The numbers of a run: fetched from the device many steps at a time, then written to files, a tracker, a monitor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.errors import CheckFailed
from mnemo.recipes.recipe import TrainConfig
from mnemo.training.metrics_log import JsonLines, NoLines, Tracker
from mnemo.training.monitor import Monitor, Status
from mnemo.training.processes import AnyWorld
from mnemo.training.run_progress import Progress, mean_loss
from mnemo.training.training_clock import Clock

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class Diverged(CheckFailed):
    """A loss or gradient that is not a finite number."""


def require_finite(name: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise Diverged(f"the {name} is {value} at step {step}")


class PendingStep(NamedTuple):
    """A step whose numbers are still on the device."""

    loss: Tensor
    """Of several processes, this one's part of the sum"""
    grad_norm: Tensor
    tokens: int


class TrainingLog:
    def __init__(
        self,
        metrics: JsonLines | NoLines,
        timing: JsonLines | NoLines,
        config: TrainConfig,
        world: AnyWorld,
        monitor: Monitor,
        tracker: Tracker,
        clock: Clock,
    ) -> None:
        self.metrics, self.timing, self.config, self.world = metrics, timing, config, world
        self.monitor, self.tracker, self.clock = monitor, tracker, clock
        self.pending: list[PendingStep] = []

    @staticmethod
    @contextmanager
    def open(
        folder: Path, saved: Mapping[str, Any], config: TrainConfig, world: AnyWorld, monitor: Monitor, tracker: Tracker
    ) -> Iterator[TrainingLog]:
        """Open the files of a run, cut back to their sizes in a checkpoint's JSON; only the main process writes."""
        lines = NoLines if world.rank else JsonLines
        clock = Clock(saved.get("seconds", 0.0), saved.get("step", 0))
        try:
            with (
                lines(folder / METRICS, saved.get("metrics_bytes", 0)) as metrics,
                lines(folder / TIMING, saved.get("timing_bytes", 0)) as timing,
            ):
                yield TrainingLog(metrics, timing, config, world, monitor, tracker, clock)
        finally:
            tracker.finish()

    def add(self, loss: Tensor, grad_norm: Tensor, tokens: int) -> None:
        """Take the numbers of a step, which may still be computed on the device."""
        self.pending.append(PendingStep(loss, grad_norm, tokens))
        self.clock.count(tokens)

    def fetch(self, progress: Progress) -> tuple[Progress, float | None]:
        """Bring pending numbers into `progress.interval`; return the gradient norm of the last step, if any."""
        if not self.pending:
            return progress, None
        losses = self.world.sums(torch.stack([step.loss for step in self.pending]).tolist())
        norms = torch.stack([step.grad_norm for step in self.pending]).tolist()
        self._require_finite(losses, norms, progress.step - len(self.pending) + 1)
        new = tuple((loss, step.tokens) for loss, step in zip(losses, self.pending, strict=True))
        self.pending = []
        return replace(progress, interval=progress.interval + new), norms[-1]

    def _require_finite(self, losses: list[float], norms: list[float], first_step: int) -> None:
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), first_step):
            require_finite("loss", loss, step)
            if self.config.precision != "fp16":  # whose scaler skips updates with a gradient that overflows
                require_finite("gradient norm", norm, step)

    def end_step(self, progress: Progress, lr: float) -> Progress:
        """Write a line of metrics after a step, if one is due."""
        is_due = progress.step % self.config.log_every == 0 or progress.step == self.config.steps
        return self._write_interval(progress, lr) if is_due else progress

    def _write_interval(self, progress: Progress, lr: float) -> Progress:
        """Write the steps since the last line, if there are any."""
        progress, norm = self.fetch(progress)
        loss = mean_loss(progress.interval)
        if loss is None and not progress.in_a_row:
            return progress
        norm = norm if norm is not None and math.isfinite(norm) else None
        record = {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": progress.tokens}
        if self.config.on_nan == "skip":
            record["skipped"] = progress.skipped
        self.write("train", progress.step, record)
        rate = self.clock.lap()
        self.timing.append({"step": progress.step, "seconds": self.seconds(), "tokens_per_second": round(rate, 1)})
        self._show(progress, loss, lr, rate)
        return replace(progress, interval=())

    def _show(self, progress: Progress, loss: float | None, lr: float, rate: float) -> None:
        step, steps = progress.step, self.config.steps
        if loss is None:
            why = f"nothing learned since the last line: {progress.skipped:,} steps skipped so far"
            self.monitor.note(f"step {step:,}/{steps:,}  {why}")
        else:
            self.monitor.trained(Status(step, steps, loss, lr, rate, self.clock.left(step, steps)))

    def write(self, split: str, step: int, values: dict[str, float | None]) -> None:
        """Write one line of metrics."""
        self.metrics.append({"step": step, "split": split, **values})
        known = {f"{split}/{name}": value for name, value in values.items() if value is not None}
        self.tracker.log(known, step)

    def seconds(self) -> float:
        return round(self.clock.total(), 3)

    def sizes(self) -> dict[str, int]:
        """Bring every line to the disk, and return the sizes of the files."""
        return {"metrics_bytes": self.metrics.sync(), "timing_bytes": self.timing.sync()}
