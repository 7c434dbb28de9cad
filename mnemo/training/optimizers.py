"""Optimizers, learning-rate schedules, gradient clipping and weight averages.

Schedules are pure functions of the number of updates done so far, so a run can start at any of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnemo.model import Model
from mnemo.model.layers.modules import Attention
from mnemo.recipes.recipe import AverageConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from mnemo.storage.overrides import RateCourse
from mnemo.training.mean_norm import MeanNorm
from mnemo.training.muon import Muon

PLATEAU_THRESHOLD = 1e-4
"""An improvement by a smaller share of the best loss does not count."""


def build_optimizer(model: Model, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Adam, AdamW, SGD or Muon. `set_learning_rate` multiplies the rate by the `factor` of each group."""
    if config.kind == "muon":
        return _build_muon(model, config)
    tables = {id(table) for table in model.embedding.tables}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if id(p) not in tables], "factor": 1.0},
        {"params": list(model.embedding.tables), "factor": config.embedding_lr_factor},
    ]
    lr, decay = config.lr, config.weight_decay
    if config.kind == "sgd":
        divided = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())  # FSDP has no fused SGD
        optimizer = torch.optim.SGD(groups, lr, momentum=config.momentum, weight_decay=decay, fused=not divided)
        add_momentum_buffers(optimizer)
        return optimizer
    kind = torch.optim.AdamW if config.kind == "adamw" else torch.optim.Adam
    beta1, beta2 = config.betas
    return kind(groups, lr, (beta1, beta2), eps=config.eps, weight_decay=decay, fused=True)


def add_momentum_buffers(optimizer: torch.optim.SGD) -> None:
    """Give every weight a momentum buffer; zeros where it has none, from which the first step is the plain gradient.

    The fused step refuses weights of which some have a buffer and others, whose first gradient comes later, have none.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


def _build_muon(model: Model, config: OptimizerConfig) -> Muon:
    matrices = layer_matrices(model)
    tables = {id(table) for table in model.embedding.tables}
    others = [p for p in model.parameters() if id(p) not in tables and p not in matrices]
    beside = config.adam_lr / config.lr
    groups: list[dict[str, Any]] = [
        {"params": list(matrices), "parts": list(matrices.values()), "factor": 1.0},
        {"params": others, "factor": beside, "weight_decay": 0.0},
        {"params": list(model.embedding.tables), "factor": beside * config.embedding_lr_factor, "weight_decay": 0.0},
    ]
    beta1, beta2 = config.betas
    options: dict[str, Any] = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    options["update_clip"] = config.update_clip
    return Muon([g for g in groups if g["params"]], config.lr, betas=(beta1, beta2), eps=config.eps, **options)


def layer_matrices(model: Model) -> dict[Tensor, int]:
    """The weights of linear maps, and the number of maps stacked in each: keys and values share one matrix."""
    stacked = {module.key_value: 2 for module in model.modules() if isinstance(module, Attention)}
    maps = [module for module in model.modules() if isinstance(module, nn.Linear) and min(module.weight.shape) > 1]
    return {module.weight: stacked.get(module, 1) for module in maps}


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        rate = lr * group["factor"]
        if isinstance(group["lr"], Tensor):  # a CUDA graph reads this very tensor
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float | None, mean_norm: MeanNorm | None = None
) -> Tensor:
    """Scale gradients by min(1, limit / (norm + 1e-6)), and return the global norm before that.

    `mean_norm` lowers the limit for norms far above their running mean.
    """
    if mean_norm is not None:
        parameters = list(parameters)
        norm = clip_gradients(parameters, None)
        mean_norm.limit(parameters, norm, limit)
        return norm
    if limit is None:
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    else:
        norm = nn.utils.clip_grad_norm_(parameters, limit)
    # With FSDP, processes sum up the norms of their pieces here.
    return norm if type(norm) is Tensor else norm.full_tensor()  # type: ignore[attr-defined]


def learning_rate(
    config: ScheduleConfig, base_lr: float, step: int, total_steps: int, plateau_factor: float = 1.0
) -> float:
    """The rate of the update after `step` others; `total_steps` is used if the schedule sets no number of steps."""
    rate = _published_rate if config.published and config.kind != "linear" else _rate
    return rate(config, base_lr, step, config.steps or total_steps, plateau_factor)


def _rate(config: ScheduleConfig, lr: float, step: int, total: int, plateau_factor: float) -> float:
    warmup = config.warmup
    if step < warmup:
        return lr * (step + 1) / warmup
    share = min(1.0, (step - warmup) / max(1, total - warmup))
    if config.kind == "cosine":
        return _cosine(lr, config.min_lr, share)
    if config.kind == "linear":
        return lr + (config.min_lr - lr) * share
    if config.kind == "inverse_sqrt":
        return max(config.min_lr, lr * math.sqrt(max(1, warmup) / (step + 1)))
    return max(config.min_lr, lr * plateau_factor) if config.kind == "plateau" else lr


def _published_rate(config: ScheduleConfig, lr: float, step: int, total: int, plateau_factor: float) -> float:
    warmup = config.warmup
    if config.kind == "inverse_sqrt":
        return lr * _published_inverse_sqrt(step, warmup)
    if 0 < step < warmup:
        return lr * step / warmup
    if config.kind == "cosine":
        return _cosine(lr, config.min_lr, min(1.0, step / total))
    if step > 0 and warmup > 1:
        lr = lr * (warmup - 1) / warmup
    return max(config.min_lr, lr * plateau_factor) if config.kind == "plateau" else lr


def _published_inverse_sqrt(step: int, warmup: int) -> float:
    if step == 0 and warmup == 0:
        return 1.0
    return step**-0.5 if step > warmup else step / warmup**1.5


def _cosine(lr: float, min_lr: float, share: float) -> float:
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * share)) / 2


def step_rate(
    config: TrainConfig, step: int, length: int, plateau_factor: float = 1.0, course: RateCourse | None = None
) -> float:
    """The rate of update number `step` (from 0) of a run, whose segment has `length` tokens.

    `course`: a new beginning of the schedule; without one, the whole schedule applies.
    """
    average, optimizer = config.average, config.optimizer
    if average is not None and average.lr is not None and step >= average.start:
        rate = average.lr
    else:
        rate = scheduled_rate(config, step, plateau_factor, course)
    return rate * length / config.segment if optimizer.scale_lr_by_length else rate


def scheduled_rate(
    config: TrainConfig, step: int, plateau_factor: float = 1.0, course: RateCourse | None = None
) -> float:
    """The rate of update number `step` by the schedule, or by a new beginning of it."""
    if course is None:
        return learning_rate(config.schedule, config.optimizer.lr, step, config.steps, plateau_factor)
    # Updates before the beginning, after newer checkpoints were lost, have its first rate.
    done = max(0, step - course.step)
    if done < course.warmup:
        return course.rate + (course.peak - course.rate) * (done + 1) / course.warmup
    schedule, begin = config.schedule, course.step + course.warmup
    if schedule.kind == "inverse_sqrt":
        return max(schedule.min_lr, course.peak * math.sqrt((begin + 1) / (max(step, begin) + 1)))
    left = (schedule.steps or config.steps) - begin
    decay = replace(schedule, warmup=0, published=False)
    return _rate(decay, course.peak, done - course.warmup, left, plateau_factor / course.plateau)


@dataclass(frozen=True, kw_only=True)
class Plateau:
    """The state of the plateau schedule after the evaluations so far."""

    factor: float = 1.0
    best: float | None = None
    bad: int = 0
    """Evaluations since the last improvement or reduction of the rate."""

    def after(self, loss: float, config: ScheduleConfig) -> Plateau:
        if self.best is None or loss < self.best * (1 - PLATEAU_THRESHOLD):
            return replace(self, best=loss, bad=0)
        if self.bad < config.patience:
            return replace(self, bad=self.bad + 1)
        return replace(self, factor=self.factor * config.factor, bad=0)


def build_average(parameters: Iterable[nn.Parameter], config: AverageConfig | None) -> Average | NoAverage:
    return NoAverage() if config is None else Average(parameters, config)


class NoAverage:
    """The weights are not averaged."""

    count = 0
    values: Sequence[Tensor] = ()

    def include(self, step: int) -> None:
        pass

    def applied(self) -> AbstractContextManager[None]:
        return nullcontext()


class Average:
    """A mean of the weights over training steps: with equal weights since its start, or exponential (EMA)."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: AverageConfig) -> None:
        self.config = config
        self.parameters = list(parameters)
        self.values: list[Tensor] = []
        self.count = 0

    def include(self, step: int) -> None:
        """Include the weights after `step` updates, if the average has started by then."""
        if step < self.config.start:
            return
        self.count += 1
        if self.count == 1:
            self.values = [parameter.detach().clone() for parameter in self.parameters]
            return
        share = 1 / self.count if self.config.kind == "uniform" else 1 - self.config.decay
        # In one operation: hundreds of small kernels would take longer than a small model's step.
        torch._foreach_lerp_(self.values, [parameter.detach() for parameter in self.parameters], share)  # pyright: ignore[reportPrivateImportUsage]

    def restore(self, values: Sequence[Tensor], count: int) -> None:
        self.values, self.count = list(values), count

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averaged weights into the model inside this context, if there is an average yet."""
        if not self.values:
            yield
            return
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._put(self.values)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Sequence[Tensor]) -> None:
        """Copy values in, because the pieces of a divided weight (FSDP) cannot be replaced by other tensors."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
