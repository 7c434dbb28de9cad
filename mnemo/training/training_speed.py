"""How fast a model trains on this machine: real updates on random tokens, timed.

training_speed(ModelConfig(...), TrainConfig(batch=22, segment=512, precision="bf16")).tokens_per_second
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.inference.cuda_graph import Recorder
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import TrainConfig
from mnemo.storage.weights import build_model, pick_device
from mnemo.training.engine import Engine
from mnemo.training.optimizers import build_optimizer
from mnemo.training.precision import gradient_scaler, state_dtype
from mnemo.training.start_ahead import start_ahead
from mnemo.training.update_input import UpdateInput, after_update
from mnemo.training.weight_update import Update, fresh_states


@dataclass(frozen=True, kw_only=True)
class TrainingSpeed:
    step: str
    """How updates ran: compiled, recorded, or why not."""
    seconds: tuple[float, ...]
    """Mean time of an update in each round."""
    tokens: int
    """New tokens of an update."""
    peak_bytes: int | None
    """Peak of GPU memory, warm-up included; None on a CPU."""
    loss: float
    """Loss of the last update."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.median


DrawTokens = Callable[[int, tuple[int, int], torch.Generator], Tensor]
"""Draws tokens of a shape from a vocabulary of a size."""


def uniform_tokens(vocab_size: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    return torch.randint(vocab_size, shape, generator=random)


def zipf_tokens(vocab_size: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """Draw tokens with probabilities of about 1 / (1 + index), as in a vocabulary of words sorted by frequency."""
    drawn = torch.rand(shape, generator=random, dtype=torch.float64)
    return ((vocab_size + 1) ** drawn - 1).long().clamp(max=vocab_size - 1)


def training_speed(model: ModelConfig, config: TrainConfig, *, updates: int = 20, rounds: int = 5) -> TrainingSpeed:
    """Time `rounds` rounds of `updates` updates each on random tokens, after some updates of warm-up."""
    updater = RandomUpdates(model, config)
    updater.run(3 + config.bptt)
    return updater.time(updates, rounds)


def timed_updates(model: ModelConfig, config: TrainConfig) -> Iterator[float]:
    """Seconds of one update after the other on random tokens, without end, after some updates of warm-up."""
    updater = RandomUpdates(model, config)
    updater.run(3 + config.bptt)
    while True:
        yield from updater.time(updates=1, rounds=1).seconds


class RandomUpdates:
    """Updates of a new model on random tokens."""

    def __init__(
        self,
        model: ModelConfig,
        config: TrainConfig,
        draw: DrawTokens = uniform_tokens,
        recorder: Recorder | None = None,
    ) -> None:
        self.device = pick_device(config.device)
        torch.manual_seed(config.seed)
        with start_ahead(self.device, config):
            built = build_model(model, config.precision).to(self.device).train()
        scaler = gradient_scaler(config.precision, self.device)
        optimizer = build_optimizer(built, config.optimizer)
        self.engine = Engine(built, optimizer, config, scaler=scaler, recorder=recorder)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.config, self.vocab_size, self._draw = config, model.vocab_size, draw
        self.states = fresh_states(built, config.batch, config.accumulate, state_dtype(config.precision))
        self.past: list[Batch] = []
        self.random = torch.Generator().manual_seed(0)
        self.num_new = 1 if config.bptt_window == "sliding" else 1 + config.bptt
        self.tokens = self.num_new * config.batch * config.segment

    def time(self, updates: int, rounds: int) -> TrainingSpeed:
        """Time `rounds` rounds of `updates` updates each."""
        seconds, loss = [], 0.0
        for _ in range(rounds):
            begin = time.perf_counter()
            loss = self.run(updates)
            seconds.append((time.perf_counter() - begin) / updates)
        is_gpu = self.device.type == "cuda"
        return TrainingSpeed(
            step=self.engine.describe(),
            seconds=tuple(seconds),
            tokens=self.tokens,
            peak_bytes=torch.cuda.max_memory_allocated(self.device) if is_gpu else None,
            loss=loss,
        )

    def run(self, updates: int) -> float:
        """Do some updates, wait for the device, and return the last loss."""
        for _ in range(updates):
            done = self._update()
        return float(done.loss)

    def run_without_graph(self) -> None:
        """Do one update without a CUDA graph: a profiler then sees which operation launches each kernel."""
        if not self.engine.run_without_graph():
            self.run(1)

    def _update(self) -> Update:
        batches = [*self.past, *(self._batch() for _ in range(self.num_new))]
        inputs = UpdateInput.of(batches, len(self.past), self.config)
        done = self.engine.update(inputs, self.states, self.config.optimizer.lr)
        begins = tuple({"batch": batch} for batch in batches)
        self.states, past = after_update(self.states, done.borders, begins, self.config)
        self.past = [begin["batch"] for begin in past]
        return done

    def _batch(self) -> Batch:
        config = self.config
        text = self._draw(self.vocab_size, (config.batch, config.context + config.segment + 1), self.random)
        return Batch(text[:, :-1].contiguous(), text[:, config.context + 1 :].contiguous())
