"""One update of the weights from the batches of one or several segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.memory.state import State
from mnemo.model import Model, Output
from mnemo.training.bptt import SegmentResult, backward
from mnemo.training.mean_norm import MeanNorm
from mnemo.training.optimizers import clip_gradients
from mnemo.training.update_input import UpdateInput, count_targets

LossTerms = tuple[Tensor | None, Tensor | float, Tensor | float, State]
"""Summed nats of a batch's targets (None if not scored), their summed z-losses, the auxiliary losses, the next state"""


def segment_loss(
    model: Model, batch: Batch, state: State, scored: bool = True, recompute: bool = False, z_loss: float = 0.0
) -> LossTerms:
    """The losses of a segment. `z_loss`: weight of the squared log-sum-exp of the logits at every target."""
    out, state = model(batch.tokens, state, lengths=batch.lengths, starts=batch.starts, recompute=recompute)
    aux = sum(out.aux.values())
    if not scored:
        return None, 0.0, aux, state
    return *target_losses(model, out, batch.targets, z_loss), aux, state


def target_losses(model: Model, out: Output, targets: Tensor, z_loss: float) -> tuple[Tensor, Tensor | float]:
    """Summed nats of the targets, and their summed z-losses."""
    if not z_loss:
        return model.loss(out, targets).sum(), 0.0
    nll, squares = model.loss_and_squared_lse(out, targets)
    return nll.sum(), z_loss * squares.sum()


SegmentLoss = Callable[..., LossTerms]
"""As `segment_loss`."""


class Counts(NamedTuple):
    """Numbers of targets to divide by, as tensors on the device."""

    minimised: Tensor
    new: Tensor


class Update(NamedTuple):
    loss: Tensor
    """Mean nats per token before the update; of several processes, this one's part of the sum"""
    grad_norm: Tensor
    """Before clipping"""
    borders: tuple[tuple[State, ...], ...]
    """For each batch, the states of its parts after it"""
    accepted: bool = True
    """Whether the weights were updated"""

    @property
    def states(self) -> tuple[State, ...]:
        return self.borders[-1]


AroundPart = Callable[[bool], AbstractContextManager[Any]]
"""Returns a context for the work on one part of the rows; the argument is whether it is the last part."""
Accept = Callable[[Tensor, Tensor], bool]
"""Decides from the loss and the gradient norm whether the weights are updated."""


def nothing_around(is_last: bool) -> AbstractContextManager[Any]:
    return nullcontext()


def update(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batch: Batch | UpdateInput,
    states: Sequence[State],
    *,
    clip: float | None,
    tokens: int | None = None,
    scaler: torch.amp.GradScaler | None = None,
    autocast: AbstractContextManager[Any] | None = None,
    forward: SegmentLoss = segment_loss,
    around_part: AroundPart = nothing_around,
    unused: Sequence[Tensor] = (),
    accept: Accept | None = None,
    mean_norm: MeanNorm | None = None,
) -> Update:
    """Update the weights once, from one batch or from several with gradient between them.

    Rows are divided into as many parts as there are states, computed one after the other.
    `tokens`: the number of targets of a single batch, if known; counting them on a device waits for it.
    `mean_norm`: limits gradients to a multiple of their mean norm.
    `unused`: weights whose gradient is dropped, so that the optimizer leaves them unchanged.
    """
    if isinstance(batch, Batch):
        batch = UpdateInput((batch,), (count_targets(batch) if tokens is None else tokens,))
    optimizer.zero_grad(set_to_none=True)
    loss, borders = gradients(
        model, batch, states, scaler=scaler, autocast=autocast, forward=forward, around_part=around_part
    )
    for parameter in unused:
        parameter.grad = None
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = clip_gradients(model.parameters(), clip, mean_norm)
    accepted = accept is None or accept(loss, norm)
    if accepted:
        optimizer.step() if scaler is None else scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    return Update(loss, norm, borders, accepted)


def gradients(
    model: Model,
    inputs: UpdateInput,
    states: Sequence[State],
    *,
    scaler: torch.amp.GradScaler | None = None,
    autocast: AbstractContextManager[Any] | None = None,
    forward: SegmentLoss = segment_loss,
    counts: Counts | None = None,
    around_part: AroundPart = nothing_around,
) -> tuple[Tensor, tuple[tuple[State, ...], ...]]:
    """Add the gradients of an update to those of the weights; return the loss, and the states after every batch."""
    minimised = inputs.num_targets if counts is None else counts.minimised

    def step(segment: Batch, state: State, scored: bool) -> SegmentResult:
        with autocast or nullcontext():
            nll, z, aux, state = forward(model, segment, state, scored)
        if nll is None:
            return SegmentResult(None, state)
        objective = (nll + z) / minimised + aux * (len(segment.tokens) / inputs.num_rows / inputs.num_scored)
        objective = objective * inputs.weight if inputs.weight > 1 else objective
        return SegmentResult(scaler.scale(objective) if scaler else objective, state, nll.detach())

    parts = zip(*(split_rows(batch, len(states)) for batch in inputs.batches), strict=True)
    results = []
    for number, (part, state) in enumerate(zip(parts, states, strict=True), 1):
        with around_part(number == len(states)):
            results.append(backward(step, part, state, scored=inputs.scored, method=inputs.method))
    new = [result.report for part in results for result in part[inputs.num_again :] if result.report is not None]
    loss = torch.stack(new).sum() / (max(1, inputs.num_new) if counts is None else counts.new)
    return loss, tuple(zip(*([result.state for result in part] for part in results), strict=True))


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    columns = [[None] * parts if column is None else column.tensor_split(parts) for column in batch]
    return [Batch(*part) for part in zip(*columns, strict=True)]


def fresh_states(model: Model, batch: int, parts: int, dtype: torch.dtype | None = None) -> tuple[State, ...]:
    """An empty state for every part of a batch's rows; memories have `dtype`, or that of the weights."""
    sizes = [len(part) for part in torch.arange(batch).tensor_split(parts)]
    return tuple(model.init(size, dtype=dtype) for size in sizes)
