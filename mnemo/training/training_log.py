"""The numbers of a run: fetched from the device many steps at a time, then written to files, a tracker, a monitor."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.data.streams import Cursor
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_lines
from mnemo.recipes.recipe import TrainConfig
from mnemo.storage.run_header import METRICS
from mnemo.training.divergence import Watch
from mnemo.training.loss_course import Course
from mnemo.training.metrics_log import JsonLines, NoLines, Tracker
from mnemo.training.monitor import Monitor, Status
from mnemo.training.processes import AnyWorld
from mnemo.training.run_progress import Progress, mean_loss

TIMING = "timing.jsonl"
UNSETTLED_LINES = 2
"""At the beginning of a run, in which a GPU may still warm up."""
QUIET_SECONDS = 30.0
"""After which progress is shown before a line of metrics is due."""


def training_seconds(path: Path, tokens: int) -> float:
    """The time of all updates in `timing.jsonl`, without compilation, evaluation and saving; `tokens`: of an update."""
    lines = load_lines(path)
    steps = [0, *(line["step"] for line in lines)]
    intervals = zip(lines, pairwise(steps), strict=True)
    return sum((step - before) * tokens / line["tokens_per_second"] for line, (before, step) in intervals)


def settled_speed(path: Path) -> float:
    """Tokens per second of a short run: the median of the intervals in `timing.jsonl` without the first two."""
    speeds = [line["tokens_per_second"] for line in load_lines(path)][UNSETTLED_LINES:]
    if not speeds:
        raise MnemoError(f"{path} has fewer than {UNSETTLED_LINES + 1} lines: the run is too short to tell its speed")
    return statistics.median(speeds)


class Clock:
    """Seconds since the run began, over all interruptions, and tokens per second without pauses."""

    def __init__(self, seconds: float, step: int) -> None:
        """`seconds` and `step`: the time and updates of the run so far."""
        now = time.monotonic()
        self._zero, self._first_step, self._start = now - seconds, step, now
        self._mark, self._tokens = now, 0
        self._shown = now
        """When the last line was shown"""
        self._updates, self._reference = 0, (now, 0, 0)
        """Updates of this process; time, updates and tokens at the beginning of what the next estimate is made from"""
        self._all_tokens = 0

    def total(self) -> float:
        return time.monotonic() - self._zero

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time inside this context out of the speed."""
        begin = time.monotonic()
        yield
        paused = time.monotonic() - begin
        reference, *counts = self._reference
        self._mark, self._shown = self._mark + paused, self._shown + paused
        self._reference = (reference + paused, *counts)

    def count(self, tokens: int) -> None:
        self._tokens += tokens
        self._all_tokens += tokens

    def lap(self) -> float:
        """Tokens per second since the last lap."""
        now = time.monotonic()
        rate = self._tokens / max(1e-9, now - self._mark)
        self._mark, self._tokens = now, 0
        return rate

    def end_update(self) -> None:
        self._updates += 1
        if self._updates == 1:  # it may have compiled the model
            self._reference = (time.monotonic(), 1, self._all_tokens)

    def is_quiet(self) -> bool:
        """Whether no line was shown for long, while there were updates from which a speed can be told."""
        return self._updates > self._reference[1] and time.monotonic() - self._shown > QUIET_SECONDS

    def show(self) -> None:
        """A line is shown; the next estimate begins here."""
        self._shown = time.monotonic()
        self._reference = (self._shown, self._updates, self._all_tokens)

    def recent(self) -> tuple[float, float]:
        """Tokens per second and seconds of an update, since the last line or the first update of this process."""
        since, updates, tokens = self._reference
        seconds = max(1e-9, time.monotonic() - since)
        return (self._all_tokens - tokens) / seconds, seconds / (self._updates - updates)

    def left(self, step: int, steps: int) -> float:
        """Estimated seconds until the last step."""
        done = max(1, step - self._first_step)
        return (time.monotonic() - self._start) / done * (steps - step)


class PendingStep(NamedTuple):
    """A step whose numbers are still on the device."""

    loss: Tensor
    """Of several processes, this one's part of the sum"""
    grad_norm: Tensor
    tokens: int
    step: int
    cursor: Cursor
    """Place of the next batch after the step"""


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
        watch: Watch,
    ) -> None:
        self.metrics, self.timing, self.config, self.world = metrics, timing, config, world
        self.monitor, self.tracker, self.clock, self.watch = monitor, tracker, clock, watch
        self.pending: list[PendingStep] = []

    @staticmethod
    @contextmanager
    def open(
        folder: Path,
        saved: Mapping[str, Any],
        config: TrainConfig,
        world: AnyWorld,
        monitor: Monitor,
        tracker: Tracker,
        watch: Watch,
    ) -> Iterator[TrainingLog]:
        """Open the files of a run, cut back to their sizes in a checkpoint's JSON; only the main process writes."""
        lines = NoLines if world.rank else JsonLines
        clock = Clock(saved.get("seconds", 0.0), saved.get("step", 0))
        try:
            with (
                lines(folder / METRICS, saved.get("metrics_bytes", 0)) as metrics,
                lines(folder / TIMING, saved.get("timing_bytes", 0)) as timing,
            ):
                for note in filter(None, (metrics.lost, timing.lost)):
                    monitor.note(note)
                yield TrainingLog(metrics, timing, config, world, monitor, tracker, clock, watch)
        finally:
            tracker.finish()

    def add(self, step: PendingStep) -> None:
        """Take the numbers of a step, which may still be computed on the device."""
        self.pending.append(step)
        self.clock.count(step.tokens)

    def fetch(self, progress: Progress) -> tuple[Progress, float | None]:
        """Bring pending numbers into `progress.interval`; return the gradient norm of the last step, if any.

        Raise `Diverged` for the first step at which the run has diverged.
        """
        if not self.pending:
            return progress, None
        losses = self.world.sums(torch.stack([step.loss for step in self.pending]).tolist())
        norms = torch.stack([step.grad_norm for step in self.pending]).tolist()
        course = self._examine(progress.course, losses, norms)
        new = tuple((loss, step.tokens) for loss, step in zip(losses, self.pending, strict=True))
        self.pending = []
        return replace(progress, interval=progress.interval + new, course=course), norms[-1]

    def _examine(self, course: Course, losses: list[float], norms: list[float]) -> Course:
        # All processes judge the main one's norms, so that they always decide alike.
        for step, loss, norm in zip(self.pending, losses, self.world.main(lambda: norms), strict=True):
            course = self.watch.examine(course, step.step, step.cursor, loss, norm, is_scored=step.tokens > 0)
        return course

    def go_back(self, saved: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
        """Cut the files back to a checkpoint's JSON, and write what has happened since."""
        self.pending = []
        self.metrics.cut(saved["metrics_bytes"])
        self.timing.cut(saved["timing_bytes"])
        for event in events:
            self.metrics.append(event)

    def end_step(self, progress: Progress, lr: float) -> Progress:
        """Write a line of metrics after a step, if one is due; else show a line, if there was none for long."""
        self.clock.end_update()
        if progress.step % self.config.log_every == 0 or progress.step == self.config.steps:
            return self._write_interval(progress, lr)
        if self.clock.is_quiet():
            self._wait_for_device()
            rate, seconds = self.clock.recent()
            left = seconds * (self.config.steps - progress.step)
            self._trained(Status(progress.step, self.config.steps, None, lr, rate, left))
        return progress

    def _wait_for_device(self) -> None:
        """Updates may only be planned, not done."""
        if self.pending:
            self.pending[-1].loss.item()

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
            self.clock.show()
            self.monitor.note(f"step {step:,}/{steps:,}  {why}")
        else:
            self._trained(Status(step, steps, loss, lr, rate, self.clock.left(step, steps)))

    def _trained(self, status: Status) -> None:
        self.clock.show()
        self.monitor.trained(status)

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
