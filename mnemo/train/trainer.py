"""The loop: read, update, log, evaluate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo import checkpoint as checkpoints
from mnemo.checkpoint import Checkpoint, RunHeader, build_model, pick_device
from mnemo.data.streams import Batch
from mnemo.errors import CheckFailed, MnemoError
from mnemo.optimize import Average, build_optimizer, step_rate
from mnemo.track import JsonLines, Tracker
from mnemo.train.data import Data, why_uneven
from mnemo.train.engine import Engine
from mnemo.train.precision import autocast, state_dtype
from mnemo.train.snapshot import (
    Best,
    Progress,
    memory_tensors,
    restore_memory,
    restore_training,
    training_tensors,
)
from mnemo.train.step import fresh_states
from mnemo.train.watch import Interrupted, Monitor, Status, Stop, interruptible
from mnemo.train.window import Window, go_on, read_batches

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class Diverged(CheckFailed):
    """A loss or gradient that is not a finite number."""


@dataclass(frozen=True)
class Outcome:
    folder: Path
    step: int
    best: Best | None
    signal: int | None
    """The signal that stopped the run; None where it reached its end"""


class Waiting(NamedTuple):
    """A step whose numbers are still on the device."""

    loss: Tensor
    grad_norm: Tensor
    tokens: int


class Clock:
    """Time since the run began, in all its processes, and since the last line, pauses left out."""

    def __init__(self, seconds: float, step: int) -> None:
        now = time.monotonic()
        self._zero, self._first_step, self._start = now - seconds, step, now
        self._mark, self._tokens = now, 0

    def total(self) -> float:
        return time.monotonic() - self._zero

    @contextmanager
    def pause(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._mark += time.monotonic() - begin

    def count(self, tokens: int) -> None:
        self._tokens += tokens

    def lap(self) -> float:
        """Tokens per second since the last lap."""
        now = time.monotonic()
        rate = self._tokens / max(1e-9, now - self._mark)
        self._mark, self._tokens = now, 0
        return rate

    def left(self, step: int, steps: int) -> float:
        done = max(1, step - self._first_step)
        return (time.monotonic() - self._start) / done * (steps - step)


class Trainer:
    """One run in one process. `progress` and `states` are replaced, never changed in place."""

    def __init__(self, folder: Path, header: RunHeader, data: Data, monitor: Monitor, tracker: Tracker) -> None:
        config = header.recipe.train
        self.folder, self.config, self.data, self.monitor, self.tracker = folder, config, data, monitor, tracker
        self.device = pick_device(config.device)
        torch.manual_seed(config.seed)
        self.model = build_model(header.recipe.model, config.precision).to(self.device).train()
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.average = Average(self.model.parameters(), config.average) if config.average else None
        self.scaler = torch.amp.GradScaler(self.device.type) if config.precision == "fp16" else None
        self.engine = Engine(
            self.model,
            self.optimizer,
            config,
            scaler=self.scaler,
            uneven=why_uneven(header.recipe),
            note=monitor.note,
        )
        self.states = fresh_states(self.model, config.batch, config.accumulate, state_dtype(config.precision))
        self.progress = Progress(cursor=data.stream.start())
        self.waiting: list[Waiting] = []
        self.saved: Checkpoint | None = None

    @contextmanager
    def started(self, first_weights: Callable[[], dict[str, Tensor] | None]) -> Iterator[None]:
        """Restore the last whole checkpoint, or begin with `first_weights`; the run's files are open inside."""
        found = self._last_whole()
        if found is not None:
            self._restore(found)
            self.monitor.note(f"going on after step {self.progress.step:,}")
        elif (weights := first_weights()) is not None:
            checkpoints.load_weights(self.model, weights, self.folder)
        sizes = found.progress if found else {}
        self.clock = Clock(self.progress.seconds, self.progress.step)
        with ExitStack() as stack:
            stack.callback(self.tracker.finish)
            self.metrics = stack.enter_context(JsonLines(self.folder / METRICS, sizes.get("metrics_bytes", 0)))
            self.timing = stack.enter_context(JsonLines(self.folder / TIMING, sizes.get("timing_bytes", 0)))
            yield

    def _last_whole(self) -> Checkpoint | None:
        checkpoints.remove_partial(self.folder)
        found, problems = checkpoints.last_whole_checkpoint(self.folder)
        if found is None and problems:
            raise MnemoError(problems[0])
        for problem in problems:
            self.monitor.note(f"{problem}; going on from an earlier checkpoint")
        return found

    def run(self, stop: Stop) -> Outcome:
        """Train to the end, or to the first signal; the last thing either way is a checkpoint."""
        while True:
            try:
                self._evaluate_if_due(stop)
            except Interrupted:
                self.monitor.note("the evaluation is left; it is done again on resume")
            ending = self._finished() or stop.signal is not None
            if ending or self._save_due():
                self._save()
            if ending:
                return Outcome(self.folder, self.progress.step, self.progress.best, self._signal(stop))
            self._advance()

    def _signal(self, stop: Stop) -> int | None:
        return None if self._finished() else stop.signal

    def _finished(self) -> bool:
        """Early stopping counts evaluations; a step that is due for one is not the last before it."""
        patience, progress = self.config.patience, self.progress
        if self._evaluation_due():
            return False
        return progress.step >= self.config.steps or (patience is not None and progress.stale >= patience)

    def _advance(self) -> None:
        progress, config = self.progress, self.config
        batches, begins, cursor = read_batches(self.data.stream, progress.cursor, progress.past, config)
        lr = step_rate(config, progress.step, batches[-1].targets.shape[1], progress.plateau.factor)
        if config.loss == "half":
            batches = [last_half(batch) for batch in batches]
        window = Window.of(batches, len(progress.past), config)
        with self.clock.pause() if self.engine.needs_preparing(window) else nullcontext():
            self.engine.prepare(window, self.states)
        done = self.engine.update(window, self.states, lr)
        self.states, past = go_on(self.states, done.borders, begins, config)
        tokens = window.num_new
        self.waiting.append(Waiting(done.loss, done.grad_norm, tokens))
        self.clock.count(tokens)
        self.progress = replace(
            progress, cursor=cursor, past=past, step=progress.step + 1, tokens=progress.tokens + tokens
        )
        if self.average:
            self.average.include(self.progress.step)
        if self.progress.step % config.log_every == 0 or self.progress.step == config.steps:
            self._log(lr)

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.config.precision, self.device)

    def _fetch(self) -> float | None:
        """Bring waiting numbers from the device into `progress.interval`; the last step's gradient norm."""
        if not self.waiting:
            return None
        losses = torch.stack([step.loss for step in self.waiting]).tolist()
        norms = torch.stack([step.grad_norm for step in self.waiting]).tolist()
        first = self.progress.step - len(self.waiting) + 1
        for index, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
            self._require_finite("loss", loss, first + index)
            if self.scaler is None:  # which skips updates whose gradient overflows
                self._require_finite("gradient norm", norm, first + index)
        new = tuple((loss, step.tokens) for loss, step in zip(losses, self.waiting, strict=True))
        self.progress = replace(self.progress, interval=self.progress.interval + new)
        self.waiting = []
        return norms[-1]

    def _require_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            kept = "no checkpoint" if self.saved is None else f"the checkpoint of step {self.saved.step}"
            raise Diverged(f"the {what} is {value} at step {step}; training stops, {self.folder} keeps {kept}")

    def _log(self, lr: float) -> None:
        norm = self._fetch()
        progress = self.progress
        tokens = sum(count for _, count in progress.interval)
        if not tokens:
            return
        loss = sum(loss * count for loss, count in progress.interval) / tokens
        norm = norm if norm is not None and math.isfinite(norm) else None
        record = {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": progress.tokens}
        self._record("train", record)
        self.progress = replace(progress, interval=())
        rate = self.clock.lap()
        seconds = round(self.clock.total(), 3)
        self.timing.append({"step": progress.step, "seconds": seconds, "tokens_per_second": round(rate, 1)})
        left = self.clock.left(progress.step, self.config.steps)
        self.monitor.trained(Status(progress.step, self.config.steps, loss, lr, rate, left))

    def _record(self, split: str, values: dict[str, float | None]) -> None:
        self.metrics.append({"step": self.progress.step, "split": split, **values})
        known = {f"{split}/{name}": value for name, value in values.items() if value is not None}
        self.tracker.log(known, self.progress.step)

    def _evaluation_due(self) -> bool:
        step, config = self.progress.step, self.config
        if self.data.score is None or step == self.progress.evaluated:
            return False
        return step % config.eval_every == 0 or step == config.steps

    def _evaluate_if_due(self, stop: Stop) -> None:
        if not self._evaluation_due() or self.data.score is None:
            return
        self._fetch()
        averaged = self.average.applied() if self.average else nullcontext()
        with self.clock.pause(), averaged, self._autocast():
            scored = self.data.score(self.model, interruptible(self.monitor.show, stop))
        step, progress = self.progress.step, self.progress
        self._require_finite("validation loss", scored.loss, step)
        self._record("valid", {"loss": scored.loss, "tokens": scored.tokens})
        is_best = progress.best is None or scored.loss < progress.best.loss
        self.progress = replace(
            progress,
            evaluated=step,
            plateau=progress.plateau.after(scored.loss, self.config.schedule),
            best=Best(step, scored.loss) if is_best else progress.best,
            stale=0 if is_best else progress.stale + 1,
        )
        self.monitor.evaluated(step, scored.loss, is_best)

    def _save_due(self) -> bool:
        best, step = self.progress.best, self.progress.step
        return step % self.config.checkpoint_every == 0 or (best is not None and best.step == step)

    def _save(self) -> None:
        """Metrics first, then the checkpoint that counts them, then what points to it, then removals."""
        self._fetch()
        saved = self.saved
        if saved is not None and saved.step == self.progress.step:
            if saved.progress["evaluated"] != self.progress.evaluated:
                self.saved = checkpoints.save_progress(saved, self._progress())
        else:
            with self.clock.pause():
                path = checkpoints.save_checkpoint(self.folder, self._progress(), self._parts())
            self.saved = checkpoints.read_checkpoint(path)
        best = self.progress.best
        if best is not None:
            checkpoints.write_best(self.folder, best.step, best.loss)
        checkpoints.prune(self.folder, self.config.keep, best.step if best else None)

    def _progress(self) -> dict[str, Any]:
        return {
            **replace(self.progress, seconds=round(self.clock.total(), 3)).to_json(),
            "average_count": self.average.count if self.average else 0,
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "metrics_bytes": self.metrics.sync(),
            "timing_bytes": self.timing.sync(),
        }

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        return {
            "weights": self.model.state_dict(),
            "training": training_tensors(self.model, self.optimizer, self.average),
            "memory": memory_tensors(self.states),
        }

    def _restore(self, found: Checkpoint) -> None:
        self.progress = Progress.from_json(found.progress, found.path)
        checkpoints.load_weights(self.model, found.tensors("weights"), found.path / "weights.safetensors")
        self.states = restore_memory(found.tensors("memory"), self.states, found.path / "memory.safetensors")
        if self.scaler is not None:
            self.scaler.load_state_dict(found.progress["scaler"])
        # Last, because it sets the random generators.
        restore_training(
            found.tensors("training"),
            self.model,
            self.optimizer,
            self.average,
            found.progress["average_count"],
            found.path / "training.safetensors",
        )
        self.saved = found


def last_half(batch: Batch) -> Batch:
    """The same tokens, of which only the last half are scored."""
    return batch._replace(targets=batch.targets[:, batch.targets.shape[1] // 2 :])
