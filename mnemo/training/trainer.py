"""The loop: read, update, log, evaluate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.errors import CheckFailed, MnemoError
from mnemo.memory.state import to
from mnemo.model import Model
from mnemo.storage import checkpoint as checkpoints
from mnemo.storage import run_folder
from mnemo.storage.checkpoint import Checkpoint
from mnemo.storage.run_folder import RunHeader
from mnemo.storage.weights import build_model, load_weights
from mnemo.training.data import Data, Scored, why_uneven
from mnemo.training.distributed import Rows, load_whole, spread
from mnemo.training.engine import Engine, choose_forward
from mnemo.training.metrics_log import JsonLines, NoLines, Tracker
from mnemo.training.optimizers import Average, build_optimizer, step_rate
from mnemo.training.precision import autocast, state_dtype
from mnemo.training.processes import Alone, AnyWorld
from mnemo.training.saving import save_together
from mnemo.training.segment_window import Window, go_on, read_batches
from mnemo.training.snapshot import (
    Best,
    Progress,
    memory_of_rows,
    memory_tensors,
    restore_memory,
    restore_training,
    seed_process,
    training_tensors,
    whole_or_pieces,
)
from mnemo.training.step import fresh_states, segment_loss
from mnemo.training.watch import Interrupted, Monitor, Status, Stop, interruptible

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
MOST_SKIPPED = 100
"""Updates in a row that may be skipped before the run counts as lost."""
MEMORY_OF_LOSS = 0.98
"""Share of the usual loss that stays at every step; the rest is the newest loss."""


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
    """Of several processes, this one's share"""
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
    """One run in one process, or in one of several. `progress` and `states` are replaced, never changed in place."""

    def __init__(
        self,
        folder: Path,
        header: RunHeader,
        data: Data,
        monitor: Monitor,
        tracker: Tracker,
        world: AnyWorld | None = None,
    ) -> None:
        config = header.recipe.train
        self.folder, self.config, self.data, self.monitor, self.tracker = folder, config, data, monitor, tracker
        self.world = world or Alone()
        self.device = self.world.device(config.device)
        torch.manual_seed(config.seed)
        self.model = build_model(header.recipe.model, config.precision).train()
        self.rows = Rows.of(self.world, config.batch)
        empty = fresh_states(self.model, len(self.rows), config.accumulate, state_dtype(config.precision))
        self.states, alone, uneven = to(empty, self.device), isinstance(self.world, Alone), why_uneven(header.recipe)
        forward, not_compiled = segment_loss, None
        if not alone:
            forward, not_compiled = choose_forward(self.model, config, self.device, uneven=uneven, note=monitor.note)
        self.spread = spread(self.model, forward, self.world, config, self.device)
        if self.world.rank:
            seed_process(config.seed, self.world, 0)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.average = Average(self.model.parameters(), config.average) if config.average else None
        self.scaler = torch.amp.GradScaler(self.device.type) if config.precision == "fp16" else None
        self.engine = Engine(
            self.model,
            self.optimizer,
            config,
            forward=None if alone else (self.spread.forward, not_compiled),
            scaler=self.scaler,
            uneven=uneven,
            apart=self._apart(),
            note=monitor.note,
        )
        self.progress = Progress(cursor=data.stream.start())
        self.waiting: list[Waiting] = []
        self.saved: Checkpoint | None = None

    @property
    def _may_skip(self) -> bool:
        return self.config.on_nan == "skip" or self.config.spike is not None

    def _apart(self) -> str | None:
        """Why updates cannot be recorded, as far as it is known here."""
        if not isinstance(self.world, Alone):
            return "several processes"
        return "updates may be skipped" if self._may_skip else None

    @contextmanager
    def started(self, first_weights: Callable[[], dict[str, Tensor] | None]) -> Iterator[None]:
        """Restore the last whole checkpoint, or begin with `first_weights`; the run's files are open inside."""
        found = self._last_whole()
        if found is not None:
            self._restore(found)
            self.monitor.note(f"going on after step {self.progress.step:,}")
        elif (weights := first_weights()) is not None:
            load = load_whole if self.spread.kind == "FSDP" else load_weights
            load(self.model, weights, self.folder)
        sizes = found.progress if found else {}
        self.clock = Clock(self.progress.seconds, self.progress.step)
        with ExitStack() as stack:
            stack.callback(self.tracker.finish)
            lines = NoLines if self.world.rank else JsonLines
            self.metrics = stack.enter_context(lines(self.folder / METRICS, sizes.get("metrics_bytes", 0)))
            self.timing = stack.enter_context(lines(self.folder / TIMING, sizes.get("timing_bytes", 0)))
            yield

    def _last_whole(self) -> Checkpoint | None:
        def look() -> int | None:
            checkpoints.remove_partial(self.folder)
            found, problems = checkpoints.last_whole_checkpoint(self.folder)
            if found is None and problems:
                raise MnemoError(problems[0])
            for problem in problems:
                self.monitor.note(f"{problem}; going on from an earlier checkpoint")
            return None if found is None else found.step

        step = self.world.main(look)
        return None if step is None else checkpoints.load_checkpoint(checkpoints.checkpoint_path(self.folder, step))

    def run(self, stop: Stop) -> Outcome:
        """Train to the end, or to the first signal; the last thing either way is a checkpoint."""
        while True:
            try:
                self._evaluate_if_due(stop)
            except Interrupted:
                self.monitor.note("the evaluation is left; it is done again on resume")
            signal = self.world.agree(stop.signal)
            ending = self._finished() or signal is not None
            if ending or self._save_due():
                self._save()
            if ending:
                signal = None if self._finished() else signal
                return Outcome(self.folder, self.progress.step, self.progress.best, signal)
            self._advance()

    def _finished(self) -> bool:
        """Early stopping looks at evaluations; a step that is due for one is not the last before it."""
        patience, goal, progress = self.config.patience, self.config.goal, self.progress
        if self._evaluation_due():
            return False
        if goal is not None and progress.best is not None and progress.best.loss <= goal:
            return True
        return progress.step >= self.config.steps or (patience is not None and progress.stale >= patience)

    def _advance(self) -> None:
        progress, config = self.progress, self.config
        batches, begins, cursor = read_batches(self.data.stream, progress.cursor, progress.past, config)
        lr = step_rate(config, progress.step, batches[-1].targets.shape[1], progress.plateau.factor)
        if config.loss == "half":
            batches = [last_half(batch) for batch in batches]
        window = Window.of(batches, len(progress.past), config)
        own = window.share(self.rows.take, self.world.size)
        with self.clock.pause() if self.engine.needs_preparing(own) else nullcontext():
            self.engine.prepare(own, self.states)
        done = self.engine.update(
            own,
            self.states,
            lr,
            part_of_rows=self.spread.part,
            idle=self.spread.idle(window),
            accept=self._acceptable if self._may_skip else None,
        )
        self.progress = replace(self.progress, cursor=cursor, step=progress.step + 1)
        if done.accepted:
            self.states, past = go_on(self.states, done.borders, begins, config)
            tokens = window.num_new
            self.waiting.append(Waiting(done.loss, done.grad_norm, tokens))
            self.clock.count(tokens)
            self.progress = replace(self.progress, past=past, tokens=progress.tokens + tokens)
        if self.average:
            self.average.include(self.progress.step)
        if self.progress.step % config.log_every == 0 or self.progress.step == config.steps:
            self._log(lr)

    def _acceptable(self, loss: Tensor, norm: Tensor) -> bool:
        """Whether an update may be done; the batch of one that may not is passed over, by its memory too."""
        (value,) = self.world.sums([float(loss)])
        progress, config = self.progress, self.config
        finite = math.isfinite(value) and (self.scaler is not None or math.isfinite(float(norm)))
        usual = progress.usual_loss
        if finite and (usual is None or config.spike is None or value <= config.spike * usual):
            usual = value if usual is None else MEMORY_OF_LOSS * usual + (1 - MEMORY_OF_LOSS) * value
            self.progress = replace(progress, usual_loss=usual, in_a_row=0)
            return True
        why = _far_above(value, usual, config.spike) if finite else "not finite"
        what = f"loss {value:.4g}, gradient norm {float(norm):.4g} ({why})"
        if config.on_nan == "stop" or progress.in_a_row + 1 >= MOST_SKIPPED:
            raise self._diverged(f"{what} at step {progress.step + 1}")
        self.monitor.note(f"step {progress.step + 1:,} is skipped: {what}")
        self.progress = replace(progress, skipped=progress.skipped + 1, in_a_row=progress.in_a_row + 1)
        return False

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.config.precision, self.device)

    def _fetch(self) -> float | None:
        """Bring waiting numbers from the device into `progress.interval`; the last step's gradient norm."""
        if not self.waiting:
            return None
        losses = self.world.sums(torch.stack([step.loss for step in self.waiting]).tolist())
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
            raise self._diverged(f"the {what} is {value} at step {step}")

    def _diverged(self, what: str) -> Diverged:
        kept = "no checkpoint" if self.saved is None else f"the checkpoint of step {self.saved.step}"
        return Diverged(f"{what}; training stops, {self.folder} keeps {kept}")

    def _log(self, lr: float) -> None:
        norm = self._fetch()
        progress = self.progress
        loss = _mean_loss(progress.interval)
        if loss is None and not progress.in_a_row:
            return
        norm = norm if norm is not None and math.isfinite(norm) else None
        record = {"loss": loss, "lr": lr, "grad_norm": norm, "tokens": progress.tokens}
        if self.config.on_nan == "skip":
            record["skipped"] = progress.skipped
        self._record("train", record)
        self.progress = replace(progress, interval=())
        rate = self.clock.lap()
        seconds = round(self.clock.total(), 3)
        self.timing.append({"step": progress.step, "seconds": seconds, "tokens_per_second": round(rate, 1)})
        if loss is None:
            why = f"nothing learned since the last line: {progress.skipped:,} steps skipped so far"
            self.monitor.note(f"step {progress.step:,}/{self.config.steps:,}  {why}")
            return
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
        with self.clock.pause(), averaged, self.spread.whole() as model, self._autocast():
            scored = self._scored_by_all(model, stop)
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

    def _scored_by_all(self, model: Model, stop: Stop) -> Scored:
        """This process's score and the others', which all see the same; one that is interrupted interrupts all."""
        assert self.data.score is not None
        scored = None
        try:
            scored = self.data.score(model, interruptible(self.monitor.show, stop))
        except Interrupted:
            pass
        if self.world.agree(None if scored else 1) or scored is None:
            raise Interrupted
        if self.world.size == 1:
            return scored
        counts = scored.tokens if self.data.divided or self.world.rank == 0 else 0
        loss, tokens = self.world.sums([scored.loss * counts, counts])
        return Scored(loss / max(1.0, tokens), int(tokens))

    def _save_due(self) -> bool:
        best, step = self.progress.best, self.progress.step
        return step % self.config.checkpoint_every == 0 or (best is not None and best.step == step)

    def _save(self) -> None:
        """Metrics first, then the checkpoint that counts them, then what points to it, then removals."""
        self._fetch()
        saved = self.saved
        if saved is None or saved.step != self.progress.step:
            with self.clock.pause():
                path = save_together(self.folder, self._progress(), self._parts(), self.world)
            self.saved = checkpoints.load_checkpoint(path)
        elif saved.progress["evaluated"] != self.progress.evaluated:
            self.saved = self.world.main(lambda: checkpoints.save_progress(saved, self._progress()))
        self.world.main(self._tidy)

    def _tidy(self) -> None:
        best = self.progress.best
        if best is not None:
            run_folder.write_best(self.folder, best.step, best.loss)
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
            "training": training_tensors(self.model, self.optimizer, self.average, self.world.rank),
            "memory": memory_tensors(self.states, self.world.rank * self.config.accumulate),
        }

    def _restore(self, found: Checkpoint) -> None:
        self.progress = Progress.from_json(found.progress, found.path)
        load_weights(self.model, whole_or_pieces(found, "weights", self.model), found.file("weights"))
        memory = memory_of_rows(found, self.rows, self.config.accumulate)
        self.states = restore_memory(memory, self.states, found.file("memory"))
        if self.scaler is not None:
            self.scaler.load_state_dict(found.progress["scaler"])
        # Last, because it sets the random generators.
        is_same_world = found.num_ranks == self.world.size
        restore_training(
            whole_or_pieces(found, "training", self.model),
            self.model,
            self.optimizer,
            self.average,
            found.progress["average_count"],
            found.file("training"),
            self.world.rank if is_same_world else None,
        )
        if not is_same_world:
            seed_process(self.config.seed, self.world, found.step)
            self.monitor.note(f"rows of {found.num_ranks} processes go on in {self.world.size}: dropout is drawn anew")
        self.saved = found


def last_half(batch: Batch) -> Batch:
    """The same tokens, of which only the last half are scored."""
    return batch._replace(targets=batch.targets[:, batch.targets.shape[1] // 2 :])


def _mean_loss(interval: Sequence[tuple[float, int]]) -> float | None:
    """Of all tokens of an interval; None where every step of it was skipped."""
    tokens = sum(count for _, count in interval)
    return sum(loss * count for loss, count in interval) / tokens if tokens else None


def _far_above(loss: float, usual: float | None, spike: float | None) -> str:
    assert usual is not None and spike is not None
    return f"{loss / usual:.3g} times the usual loss of {usual:.4g}: --train.spike {spike:g}"
