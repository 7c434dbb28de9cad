"""The training loop: update, log, evaluate, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mnemo.data.streams import Cursor
from mnemo.display import Shown, Summary
from mnemo.memory.state import to
from mnemo.storage.run_header import METRICS, RunHeader
from mnemo.storage.weights import build_model
from mnemo.training.checkpoint_schedule import reason_to_save
from mnemo.training.checkpoint_tensors import seed_process
from mnemo.training.checkpointing import RunCheckpoints, TrainingState
from mnemo.training.data import Data, why_uneven
from mnemo.training.distributed import Rows, parallelize
from mnemo.training.divergence import Diverged, Watch
from mnemo.training.engine import Engine, choose_forward
from mnemo.training.mean_norm import MeanNorm
from mnemo.training.metrics_log import Tracker
from mnemo.training.monitor import Monitor
from mnemo.training.optimizers import build_average, build_optimizer, step_rate
from mnemo.training.precision import autocast, gradient_scaler, state_dtype
from mnemo.training.processes import Alone, AnyWorld
from mnemo.training.recovery import Recovery
from mnemo.training.rollbacks import rate_factor
from mnemo.training.run_progress import Best, Progress
from mnemo.training.start_ahead import start_ahead
from mnemo.training.stop_signals import Interrupted, Stop
from mnemo.training.training_log import PendingStep, TrainingLog
from mnemo.training.update_guard import UpdateGuard
from mnemo.training.update_input import UpdateInput, after_update, next_batches
from mnemo.training.validation import Validation
from mnemo.training.weight_update import Update, fresh_states
from mnemo.units import bits


@dataclass(frozen=True, repr=False)
class Outcome(Shown):
    folder: Path
    step: int
    best: Best | None
    signal: int | None
    """The first signal that came while it trained: it stopped the run, unless that was finished already"""
    early_end: str | None = None
    """Why the run ended before its last step: it reached its goal, or stopped improving"""
    finished: bool = True
    """Whether the run reached its end"""

    def summary(self) -> Summary:
        end = "finished" if self.finished else f"stopped by signal {self.signal}"
        facts = [("folder", str(self.folder))]
        if self.best is not None:
            loss = f"{self.best.loss:.4f} nats ({bits(self.best.loss):.4f} bits) per token"
            facts.append(("best validation", f"{loss} at step {self.best.step:,}"))
        return Summary(f"{end} after step {self.step:,}", [*facts, ("open it", f'mnemo.open_run("{self.folder}")')])


class Trainer:
    """One run in one process, or in one of several."""

    def __init__(
        self,
        folder: Path,
        header: RunHeader,
        data: Data,
        monitor: Monitor,
        tracker: Tracker,
        world: AnyWorld | None = None,
    ) -> None:
        config, uneven = header.recipe.train, why_uneven(header.recipe)
        self.folder, self.config, self.data, self.monitor, self.tracker = folder, config, data, monitor, tracker
        self.course = header.course
        self.world = world = world or Alone()
        self.device = device = world.device(config.device)
        torch.manual_seed(config.seed)
        with start_ahead(device, config):
            self.model = model = build_model(header.recipe.model, config.precision).train()
        self.rows = Rows.of(world, config.batch)
        empty = fresh_states(model, len(self.rows), config.accumulate, state_dtype(config.precision))
        choose_loss = partial(choose_forward, model, config, device, uneven=uneven, note=monitor.note)
        self.parallel = parallelize(model, choose_loss, world, config, device)
        if world.rank:  # the main process continues with the generator that drew the weights
            seed_process(config.seed, world, 0)
        optimizer = build_optimizer(model, config.optimizer)
        average = build_average(model.parameters(), config.average)
        scaler = gradient_scaler(config.precision, device)
        mean_norm = MeanNorm.of(config.optimizer, device)
        self.guard = UpdateGuard(config, world, monitor)
        self.engine = Engine(
            model,
            optimizer,
            config,
            forward=self.parallel.forward,
            scaler=scaler,
            uneven=uneven,
            unrecordable=self.parallel.unrecordable or self.guard.unrecordable,
            note=monitor.note,
            mean_norm=mean_norm,
        )
        progress = Progress(cursor=data.stream.start())
        self.state = TrainingState(model, optimizer, average, scaler, to(empty, device), progress, mean_norm)
        self.checkpoints = RunCheckpoints(folder, config, world, monitor)
        self.recovery = Recovery(config, self.checkpoints, self.rows, monitor)
        self.watch = Watch(config, model.config.vocab_size, monitor)
        precision = partial(autocast, config.precision, device)
        self.validation = Validation(data, config, world, monitor, self.parallel.whole_model, average, precision)

    @contextmanager
    def started(self, first_weights: Callable[[], dict[str, Tensor] | None]) -> Iterator[None]:
        """Restore the last whole checkpoint, or start from `first_weights`; the run's files are open inside."""
        saved = self.checkpoints.restore_last(self.state, self.rows)
        if self.checkpoints.last is None:
            if (self.folder / METRICS).exists():
                self.monitor.note(f"{self.folder} has no checkpoint: training begins again at step 0")
            if (weights := first_weights()) is not None:
                self.parallel.load_weights(self.model, weights, self.folder)
        with TrainingLog.open(
            self.folder, saved, self.config, self.world, self.monitor, self.tracker, self.watch
        ) as self.log:
            yield

    def run(self, stop: Stop) -> Outcome:
        """Train to the end, or to the first signal; save a checkpoint in both cases."""
        try:
            while True:
                try:
                    return self._run(stop)
                except Diverged as error:
                    self._recover(error)
        finally:
            self.checkpoints.finish()

    def _recover(self, error: Diverged) -> None:
        """Go back to an earlier checkpoint, or raise the reason to stop."""
        with self.log.clock.pause():
            self.recovery.roll_back(error, self.state, self.log)
            self.engine.forget_recording()

    def _run(self, stop: Stop) -> Outcome:
        while True:
            self._evaluate_if_due(stop)
            signal, is_late = self.world.largest([stop.signal or 0, int(self.checkpoints.is_late())])
            progress = self.state.progress
            # Early stopping depends on evaluations, so a run never ends before one that is due.
            finished = progress.is_finished(self.config) and not self.validation.is_due(progress)
            situation = {"finished": finished, "stopped": bool(signal), "is_late": bool(is_late)}
            reason = reason_to_save(progress, self.config, **situation)
            if reason is not None:
                self.checkpoints.save(self.state, self.log, reason)
            if finished or signal:
                early = progress.early_end(self.config)
                return Outcome(self.folder, progress.step, progress.best, signal or None, early, finished)
            self._advance()

    def _evaluate_if_due(self, stop: Stop) -> None:
        if not self.validation.is_due(self.state.progress):
            return
        self.state.progress, _ = self.log.fetch(self.state.progress)
        try:
            self.state.progress = self.validation.run(self.state.progress, self.log, stop)
        except Interrupted:
            self.monitor.note("the evaluation was interrupted; it is repeated on resume")

    def _advance(self) -> None:
        """Do one update, and log it if a line is due."""
        self.checkpoints.raise_failure()
        state, config = self.state, self.config
        before = state.progress
        batches, begins, cursor = next_batches(self.data.stream, before.cursor, before.past, config)
        lr = step_rate(config, before.step, batches[-1].targets.shape[1], before.plateau.factor, self.course)
        lr *= rate_factor(before.rollbacks, before.step)
        inputs = UpdateInput.of(batches, len(before.past), config)
        done = self._update(inputs, lr)
        state.progress = replace(state.progress, cursor=cursor, step=before.step + 1)
        if done.accepted:
            self._take(done, inputs.num_new, begins)
        state.average.include(state.progress.step)
        state.progress = self.log.end_step(state.progress, lr)

    def _update(self, inputs: UpdateInput, lr: float) -> Update:
        own = inputs.share(self.rows.take, self.world.size)
        with self.log.clock.pause():  # compiling and recording take a while, but only once
            self.engine.prepare(own, self.state.states)
        return self.engine.update(
            own,
            self.state.states,
            lr,
            around_part=self.parallel.around_part,
            unused=self.parallel.unused_weights(inputs),
            accept=self._accept if self.guard.is_active else None,
        )

    def _accept(self, loss: Tensor, norm: Tensor) -> bool:
        self.state.progress, accepted = self.guard.judge(self.state.progress, loss, norm)
        return accepted

    def _take(self, done: Update, tokens: int, begins: tuple[Cursor, ...]) -> None:
        """Take over the memories and numbers of an update."""
        state = self.state
        state.states, past = after_update(state.states, done.borders, begins, self.config)
        state.progress = replace(state.progress, past=past, tokens=state.progress.tokens + tokens)
        self.log.add(PendingStep(done.loss, done.grad_norm, tokens, state.progress.step, state.progress.cursor))
