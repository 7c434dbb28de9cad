"""Estimate training on given GPUs: memory, speed, days, energy and communication, without using a GPU.

Memory   weights, gradients, the optimizer's moments and averages in the training type (32 bits, also under bf16, which
         adds a 16-bit copy of the weights while a step runs); activations, by a forward pass on tensors without
         storage that adds up what autograd keeps; the recurrent state of a GPU's rows; logits, which exist in pieces.
Speed    FLOPs of `mnemo info`, divided by the GPU's peak times the measured share of it.
Layouts  DDP divides only the rows between GPUs, and sums gradients: a ring sends 2 (N - 1) / N of them. FSDP2
         divides weights, gradients and optimizer by N, and gathers weights for the forward pass and again for the
         backward pass: 3 (N - 1) / N of them are sent, for every segment of a window that is trained through time. If a
         GPU divides its rows into parts, each of them gathers the weights, and the last one sums gradients. No layout
         sends state: a row's memory stays on its GPU.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mnemo.cost.gpu_specs import Efficiency, Gpu
from mnemo.cost.model_cost import describe
from mnemo.cost.state_size import float_bytes
from mnemo.errors import MnemoError
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.shapes import num_parameters, shape_model
from mnemo.recipes.recipe import Recipe, TrainConfig
from mnemo.training.optimizers import layer_matrices
from mnemo.units import duration_text

BYTES = {"fp64": 8, "fp32": 4, "bf16": 4, "fp16": 4}
"""Bytes of a weight in training."""
LOGITS_AT_ONCE = 2**24
LOGIT_COPIES = 3
"""Logits, their softmax and their gradient."""
USABLE = 0.92
"""Usable share of a GPU's memory; its context, libraries and gaps between allocations take the rest."""
CPU_FLOPS = 1e11
"""FLOP/s that a few cores reach in training."""
Layout = Literal["ddp", "fsdp2"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The GPUs of an estimate and the links between them."""

    gpu: Gpu
    gpus: int
    per_node: int
    network: float
    """Bytes/s that one GPU sends to other nodes."""
    efficiency: Efficiency

    @property
    def bandwidth(self) -> float:
        """Bytes/s of a ring over all GPUs, which is as fast as its slowest link."""
        return self.gpu.link if self.gpus <= self.per_node else min(self.network, self.gpu.link)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one GPU."""

    weights: float
    gradients: float
    optimizer: float
    """Moments, and averaged weights if the recipe has them."""
    activations: float
    state: float
    logits: float
    gathered: float
    """Whole weights of two layers, which FSDP2 gathers one after the other."""

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


@dataclass(frozen=True, kw_only=True)
class LayoutEstimate:
    layout: Layout
    memory: Memory
    fits: bool
    sent: float
    """Bytes that a GPU sends in a step."""
    seconds_sending: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"memory": asdict(self.memory) | {"total": self.memory.total}}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    name: str
    parameters: int
    gpus: int
    gpu: str
    precision: str
    rows: int
    """Rows on the GPU that has most of them, which determines the time of a step."""
    batch: int
    segment: int
    segments: int
    """New segments of a row in a step: those of a window, if windows do not overlap."""
    state_row: int
    """Bytes of one row's recurrent state."""
    flops_per_token: float
    """FLOPs of a token in training."""
    tokens: float
    """Tokens to train on."""
    efficiency: Efficiency
    compute_seconds: float
    """Seconds of computation of a step."""
    layouts: tuple[LayoutEstimate, ...]
    watts: float

    @property
    def chosen(self) -> LayoutEstimate | None:
        """The first layout that fits; DDP, which sends least, comes first."""
        return next((layout for layout in self.layouts if layout.fits), None)

    def step_seconds(self, layout: LayoutEstimate) -> float:
        """Seconds of a step if sending does not overlap with computing: the worst case."""
        return self.compute_seconds + layout.seconds_sending

    def days(self, layout: LayoutEstimate) -> float:
        return self.tokens / self.tokens_per_second(layout) / 86400

    def tokens_per_second(self, layout: LayoutEstimate) -> float:
        return self.batch * self.segments * self.segment / self.step_seconds(layout)

    def kilowatt_hours(self, layout: LayoutEstimate) -> float:
        return self.days(layout) * 24 * self.gpus * self.watts / 1000

    def to_json(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("layouts", "efficiency", "watts")
        }
        layouts = [
            layout.to_json()
            | {
                "step_seconds": self.step_seconds(layout),
                "step_seconds_at_best": max(self.compute_seconds, layout.seconds_sending),
                "tokens_per_second": self.tokens_per_second(layout),
                "days": self.days(layout),
                "kilowatt_hours": self.kilowatt_hours(layout),
            }
            for layout in self.layouts
        ]
        chosen = self.chosen
        return own | {
            "efficiency": self.efficiency._asdict(),
            "fits": None if chosen is None else chosen.layout,
            "layouts": layouts,
        }


def estimate(name: str, recipe: Recipe, machine: Machine, *, tokens: float | None = None) -> Estimate:
    """Estimate training `recipe` on `tokens` tokens; None: the recipe's steps."""
    train = recipe.train
    if machine.gpus < 1 or machine.per_node < 1:
        raise MnemoError(f"{machine.gpus} GPUs, {machine.per_node} in a node: both numbers must be positive")
    if train.batch < machine.gpus * train.accumulate:
        parts = f" in {train.accumulate:,} parts" if train.accumulate > 1 else ""
        raise MnemoError(f"{train.batch:,} rows are too few for {machine.gpus:,} GPUs{parts}: each needs one or more")
    info = describe(name, recipe)
    rows, segments = math.ceil(train.batch / machine.gpus), _new_segments(train)
    flops = info.training_step * rows * segments * train.segment
    compute = flops / (machine.gpu.peak(train.precision) * machine.efficiency.share)
    count, state_row = info.parameters.total, state_row_bytes(recipe.model, train.precision)
    layouts = tuple(_layout(layout, recipe, machine, count, rows * state_row, rows) for layout in ("ddp", "fsdp2"))
    return Estimate(
        name=name,
        parameters=count,
        gpus=machine.gpus,
        gpu=machine.gpu.name,
        precision=train.precision,
        rows=rows,
        batch=train.batch,
        segment=train.segment,
        segments=segments,
        state_row=state_row,
        flops_per_token=info.training_step,
        tokens=float(trained_tokens(train)) if tokens is None else tokens,
        efficiency=machine.efficiency,
        compute_seconds=compute,
        layouts=layouts if machine.gpus > 1 else layouts[:1],
        watts=machine.gpu.watts,
    )


def _layout(layout: Layout, recipe: Recipe, machine: Machine, count: int, state: float, rows: int) -> LayoutEstimate:
    memory = _memory(layout, recipe, machine.gpus, count, state, rows)
    share = (machine.gpus - 1) / machine.gpus
    train = recipe.train
    times = 2 if layout == "ddp" else (2 * train.accumulate + 1) * (1 + train.bptt)
    sent = times * share * count * BYTES[train.precision]
    fits = memory.total <= USABLE * machine.gpu.memory
    return LayoutEstimate(layout=layout, memory=memory, fits=fits, sent=sent, seconds_sending=sent / machine.bandwidth)


def _memory(layout: Layout, recipe: Recipe, gpus: int, count: int, state: float, rows: int) -> Memory:
    train, size = recipe.train, BYTES[recipe.train.precision]
    half = 2 if train.precision in ("bf16", "fp16") else 0
    parts = gpus if layout == "fsdp2" else 1
    per_layer = count / recipe.model.num_layers
    return Memory(
        weights=count * size / parts + (count * half if layout == "ddp" else 0),
        gradients=count * size / parts,
        optimizer=size * _optimizer_numbers(recipe) / parts,
        activations=activation_bytes(recipe.model, train, rows),
        state=state,
        logits=_logits(recipe, rows),
        gathered=2 * per_layer * size if layout == "fsdp2" and gpus > 1 else 0,
    )


def trained_tokens(train: TrainConfig) -> int:
    """Tokens that all steps read: of one segment each, or of a whole window where windows do not overlap."""
    return train.steps * train.batch * train.segment * _new_segments(train)


def _new_segments(train: TrainConfig) -> int:
    return 1 + train.bptt if train.bptt_window == "tumbling" else 1


def cpu_seconds(flops: float) -> float:
    """In which a few cores compute it."""
    return flops / CPU_FLOPS


def cpu_time_in_words(flops: float) -> str:
    return f"a few cores, which compute {CPU_FLOPS / 1e9:g} GFLOP/s, take about {duration_text(cpu_seconds(flops))}"


def training_bytes(recipe: Recipe) -> float:
    """Bytes of memory that training a recipe on one device takes."""
    count = num_parameters(recipe.model)
    state = recipe.train.batch * state_row_bytes(recipe.model, recipe.train.precision)
    return _memory("ddp", recipe, 1, count, state, recipe.train.batch).total


def checkpoint_bytes(recipe: Recipe) -> int:
    """Bytes of a checkpoint: weights, moments and averages, and the state of all rows.

    The first ones are smaller if weights have no gradient in the first step: those that write an associative memory
    learn from the second segment on, and have no moments before.
    """
    train = recipe.train
    kept = num_parameters(recipe.model) + _optimizer_numbers(recipe)
    return BYTES[train.precision] * kept + train.batch * state_row_bytes(recipe.model, train.precision)


def _optimizer_numbers(recipe: Recipe) -> int:
    """Count of the numbers kept besides the weights: moments, and averages."""
    count, optimizer = num_parameters(recipe.model), recipe.train.optimizer
    averages = 0 if recipe.train.average is None else count
    if optimizer.kind == "sgd":
        return averages + (count if optimizer.momentum > 0 else 0)
    # Muon keeps one momentum of a matrix; Adam, also for Muon's other weights, keeps two moments.
    matrices = layer_matrices(shape_model(recipe.model)) if optimizer.kind == "muon" else ()
    return averages + 2 * count - sum(matrix.numel() for matrix in matrices)


def _logits(recipe: Recipe, rows: int) -> float:
    wanted = rows * recipe.train.segment * recipe.model.vocab_size
    return LOGIT_COPIES * BYTES[recipe.train.precision] * min(wanted, LOGITS_AT_ONCE)


def activation_bytes(config: ModelConfig, train: TrainConfig, rows: int) -> float:
    """Bytes that autograd keeps between the passes of a step, without embeddings and softmax."""
    rows = math.ceil(rows / train.accumulate)
    dtype = _computed_in(train.precision)
    length = train.segment + train.context
    one = saved_bytes(config, length, dtype)
    if dtype == torch.bfloat16:
        one += 2 * 2 * config.num_layers * length * config.dim  # norms keep their input in 32 bits, not 16
    segments = 1 if train.bptt_memory != "plain" else train.bptt + 1
    return float(rows * segments * one)


def state_row_bytes(config: ModelConfig, precision: str) -> int:
    """Bytes of one row's state, without counters; states have the type of the computation."""
    return float_bytes(shape_model(config).init(1, dtype=_computed_in(precision)))


def _computed_in(precision: str) -> torch.dtype:
    """A type of the right size; bf16 stands for fp16 as well."""
    return {"fp64": torch.float64, "fp32": torch.float32}.get(precision, torch.bfloat16)


def saved_bytes(config: ModelConfig, length: int, dtype: torch.dtype) -> int:
    """Bytes that autograd keeps of one row of a segment, counted on tensors without storage."""
    # An adaptive embedding depends on token values, which do not exist here; its part is counted with the logits.
    plain = replace(config, vocab_size=256, embedding=EmbeddingConfig(), memory=config.memory.on_shapes())
    if any(memory.traits.single_precision for memory in config.memory.memories(config.num_layers)):
        dtype = torch.float32
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.device("meta"):
        model = Model(plain).to(dtype).train()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out, _ = model(torch.zeros(1, length, dtype=torch.int64), model.init(1))
    del out
    weights = {_place(parameter) for parameter in model.parameters()}
    sizes = {_place(tensor): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(size for place, size in sizes.items() if place not in weights)


def _place(tensor: Tensor) -> int:
    """Identity of a tensor's storage: tensors that share one count once."""
    return tensor.untyped_storage()._cdata


def failures_per_day(gpus: int, gpu_hours: float) -> float:
    """Return the expected failures of a job a day; `gpu_hours`: hours of one GPU between two failures."""
    return gpus * 24 / gpu_hours


def checkpoint_interval(save_seconds: float, failures: float) -> float:
    """Best time between checkpoints in seconds (Young, 1974): sqrt(2 x time of a save x time between failures)."""
    return math.sqrt(2 * save_seconds * 86400 / failures)


def lost_share(save_seconds: float, interval: float, failures: float) -> float:
    """Share of time lost to saves, and to half an interval that is repeated after every failure."""
    return save_seconds / interval + interval / 2 * failures / 86400
