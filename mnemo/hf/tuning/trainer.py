"""A transformers Trainer for samples of several segments, whose curriculum follows the accuracy on held-out samples."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from mnemo.data.babilong.samples import BabiLong
from mnemo.files.json_file import load_json, write_json
from mnemo.hf.memory_tokens.curriculum import memory_model
from mnemo.hf.safe_folder import write_checksums
from mnemo.hf.tuning.accuracy import accuracy_by_segments
from mnemo.hf.tuning.batches import BookDraw, Draw, TrainingSamples
from mnemo.hf.tuning.curriculum import CurriculumState
from mnemo.recipes.tuning import Tuning
from mnemo.storage.weights import pick_device
from mnemo.training.stop_signals import Stop

DECISIONS = "curriculum.json"
"""The curriculum at the step of a Trainer checkpoint"""
METRICS = "metrics.jsonl"
RECENT_STEPS = 20
LEAST_STEPS = 5
"""Steps whose time must be known before the end of training is planned, and from one plan to the next"""
BETAS = (0.9, 0.95)
CHECK_SEED = 2_000_003
Say = Callable[[str], None]


class MemoryTrainer(Trainer):
    """Trains on generated samples; `options` describes them, the curriculum and the optimizer."""

    def __init__(self, model: Any, options: Tuning, train: BabiLong, held_out: BabiLong, say: Say = print) -> None:
        self.options, self.curriculum = options, CurriculumState()
        stages = options.curriculum
        draw = Draw(train, stages, options)
        per_step = options.batch // options.micro_batch
        # Each segment of a book has a loss, and those beyond the depth of the gradient would be read again for each.
        most = None if options.bptt is None else options.bptt + 1
        books = BookDraw(train.background, stages, options.micro_batch, options.book_steps, most, options.seed)
        samples = TrainingSamples(draw, books, self.curriculum, per_step)
        optimizer = build_optimizer(model, options)
        scheduler = LambdaLR(optimizer, lambda step: self.curriculum.rate(step, options.warmup))
        super().__init__(
            model,
            training_arguments(options, per_step),
            train_dataset=samples,
            data_collator=_only,
            optimizers=(optimizer, scheduler),
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.course = _Course(self, held_out, say)
        self.add_callback(self.course)
        self.samples = samples

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.samples, batch_size=None)  # not read ahead: a new stage begins at once

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        # The backward pass is inside, because it computes checkpointed segments again.
        with compiling(self.options, inputs["segment"]):
            return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        inputs = dict(inputs)
        inner, segments, books = memory_model(model), inputs.pop("segments"), inputs.pop("books")
        inner.config.segment = inputs.pop("segment")
        inner.config.backward = "plain" if segments <= self.options.plain_segments else "checkpoint"
        loss = model(**inputs, return_memory=False, num_items_in_batch=num_items_in_batch).loss
        self.course.add(loss.detach(), inputs["input_ids"].numel(), books)
        return loss

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # A run may be continued with other rates than the checkpoint's, for example after an unstable stage.
        rates = list(self.lr_scheduler.base_lrs)  # type: ignore[union-attr]
        super()._load_optimizer_and_scheduler(checkpoint)
        self.lr_scheduler.base_lrs = rates  # type: ignore[union-attr]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.curriculum.load(load_json(Path(resume_from_checkpoint) / DECISIONS))


def training_arguments(options: Tuning, per_step: int) -> TrainingArguments:
    return TrainingArguments(
        str(options.out),
        max_steps=options.max_steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=per_step,
        max_grad_norm=1.0,
        bf16=options.precision == "bf16",
        use_cpu=pick_device(options.device).type == "cpu",
        seed=options.seed,
        save_strategy="no" if options.save_every is None else "steps",
        save_steps=options.save_every or 500,
        save_total_limit=1,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        ignore_data_skip=True,  # samples depend on the step: none is drawn again to skip it
        average_tokens_across_devices=False,
    )


def build_optimizer(model: Any, options: Tuning) -> torch.optim.Optimizer:
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    memory = [weight for name, weight in trained if "memory_tokens" in name]
    others = [weight for name, weight in trained if "memory_tokens" not in name]
    rates = ((others, options.rate), (memory, options.rate * options.memory_rate))
    groups = [{"params": weights, "lr": rate} for weights, rate in rates if weights]
    on_gpu = any(weight.is_cuda for weight in model.parameters())
    return torch.optim.AdamW(groups, betas=BETAS, weight_decay=0.0, fused=on_gpu or None)


def precision_context(options: Tuning, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which the model computes."""
    return torch.autocast(device.type, torch.bfloat16) if options.precision == "bf16" else nullcontext()


def compiling(options: Tuning, tokens: int) -> AbstractContextManager[Any]:
    """Return a context in which layers are compiled for segments of full length only; other shapes run uncompiled.

    Compiling for every stage would take longer than it saves.
    """
    full = not options.compiled or tokens == options.segment
    return nullcontext() if full else torch.compiler.set_stance("force_eager")


def _plan(options: Tuning) -> str:
    """Return what training is going to do, in one line."""
    limits = [] if options.time_limit is None else [f"{options.time_limit:g} minutes"]
    limits += [] if options.steps is None else [f"{options.steps:,} steps"]
    stages = " ".join(map(str, options.curriculum))
    return f"training for {' or '.join(limits)}, stages {stages}; a line every {options.check_every} steps"


def _only(batches: Any) -> Any:
    return batches


class StopAtSignal(TrainerCallback):
    """Ends training after the step in which a signal has come, with a checkpoint."""

    def __init__(self, stop: Stop, say: Say) -> None:
        self._stop, self._say = stop, say

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._stop.signal is not None:
            self._say(f"saving after step {state.global_step:,}")
            control.should_training_stop = True
            control.should_save = True


class _Course(TrainerCallback):
    """Measures accuracy, begins new stages, and ends training in time."""

    def __init__(self, trainer: MemoryTrainer, held_out: BabiLong, say: Say) -> None:
        self.trainer, self.held_out, self.say = trainer, held_out, say
        self.options, self.curriculum = trainer.options, trainer.curriculum
        self.paused = False
        self._losses: list[Tensor] = []
        self._book_losses: list[Tensor] = []
        self._tokens = 0
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)

    def add(self, loss: Tensor, tokens: int, books: bool) -> None:
        (self._book_losses if books else self._losses).append(loss)
        self._tokens += tokens

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.samples.first_step = state.global_step
        state.save_steps = int(args.save_steps)  # not those of the checkpoint
        steps, options, planned = self.options.steps, self.options, self.curriculum.cooldown
        if steps is not None and options.time_limit is None:
            last_part = (round(steps * (1 - options.cooldown)), steps)
            self.curriculum.cooldown = last_part if options.cooldown else None
        elif planned is not None and planned[1] <= state.global_step:  # a finished run is trained further
            self.curriculum.cooldown = None
        self._called = self._last = self._since = time.monotonic()
        self._before, self._first = self.curriculum.seconds, state.global_step + 1
        self._first_of_its_kind, self._planned = True, None
        self.say(_plan(options))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        step = state.global_step
        stage = self.curriculum.stage
        if step == self._first:
            self.say(f"first step: {time.monotonic() - self._called:.1f} s")
        if step % self.options.check_every == 0:
            self._check(step)
        now = time.monotonic()
        if not self._first_of_its_kind:  # it may have been compiled
            self._recent.append(now - self._last)
        self._first_of_its_kind = self.curriculum.stage != stage
        if self._first_of_its_kind:
            self._recent.clear()  # the steps of a new stage are slower
        self._last = now
        self.curriculum.seconds = self._before + now - self._called
        self._plan_end(step)
        ended = self.curriculum.cooldown is not None and step >= self.curriculum.cooldown[1]
        limit = self.options.pause_after
        self.paused = not ended and limit is not None and now - self._called >= 60 * limit
        if ended or self.paused or step >= self.options.max_steps:
            control.should_training_stop = True
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if self.options.lora:  # peft writes none
            write_checksums(folder)
        write_json(folder / DECISIONS, self.curriculum.as_dict())

    def _plan_end(self, step: int) -> None:
        """Let the learning rate fall in the last part of the minutes, by the speed of recent steps of the stage.

        The plan is renewed as long as it falls, since later stages have slower steps.
        """
        options, curriculum = self.options, self.curriculum
        if options.time_limit is None:
            return
        left = 60 * options.time_limit - curriculum.seconds
        falling = left <= 60 * options.time_limit * options.cooldown
        if not falling:
            return
        if left <= 0:
            curriculum.end_at(step, step)
        elif len(self._recent) >= LEAST_STEPS and (self._planned is None or step >= self._planned + LEAST_STEPS):
            steps = int(left / (sum(self._recent) / len(self._recent)))
            curriculum.end_at(step, step + steps)
            self._planned = step

    def _check(self, step: int) -> None:
        options, curriculum = self.options, self.curriculum
        stage = options.curriculum[curriculum.stage]
        seconds = time.monotonic() - self._since
        device = memory_model(self.trainer.model).device
        with precision_context(options, device), compiling(options, stage.tokens):
            model, number = self.trainer.model, options.check_samples
            (found,) = accuracy_by_segments(
                model, self.held_out, [stage], number, batch=options.micro_batch, seed=CHECK_SEED, cut=False
            )
        line = {
            "step": step,
            "stage": str(stage),
            "loss": self._mean(self._losses),
            "accuracy": found.share,
            "tokens_per_second": self._tokens / seconds,
            "rate": options.rate * curriculum.rate(step, options.warmup),
            "minutes": (self._before + time.monotonic() - self._called) / 60,
        }
        if self._book_losses:
            line["book_loss"] = self._mean(self._book_losses)
        promoted = curriculum.record(step, found.share, options.promote, len(options.curriculum))
        self._report(line, promoted)
        self._losses, self._book_losses, self._tokens, self._since = [], [], 0, time.monotonic()

    def _mean(self, losses: list[Tensor]) -> float | None:
        """Return the mean loss of a step, from its micro-batches' shares of it; None without steps."""
        steps = len(losses) // self.trainer.samples.per_step
        return float(torch.stack(losses).sum()) / steps if steps else None

    def _report(self, line: dict[str, Any], promoted: bool) -> None:
        with (self.options.out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        loss = "-" if line["loss"] is None else f"{line['loss']:.3f}"
        books = f"  books {line['book_loss']:.3f}" if "book_loss" in line else ""
        text = "step {step:>5}  {stage:>7}  loss {loss}{books}  accuracy {accuracy:.3f}".format(
            **line | {"loss": loss, "books": books}
        )
        speed = "{tokens_per_second:>9,.0f} tokens/s  {minutes:.1f} min".format(**line)
        following = f"  next: {self.options.curriculum[self.curriculum.stage]}" if promoted else ""
        self.say(f"{text}  {speed}{following}")
