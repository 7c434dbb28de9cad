"""One update of the weights. The pieces are pure but for the gradients and the weights themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.memory.state import State
from mnemo.model import Model
from mnemo.training.bptt import Read, backward
from mnemo.training.optimizers import clip_gradients
from mnemo.training.segment_window import Window, count_targets


def segment_loss(
    model: Model, batch: Batch, state: State, scored: bool = True, recompute: bool = False
) -> tuple[Tensor | None, Tensor | float, State]:
    """Summed nats of the batch's targets (None where they are not wanted), summed auxiliary losses, the next state."""
    out, state = model(batch.tokens, state, lengths=batch.lengths, starts=batch.starts, recompute=recompute)
    return model.loss(out, batch.targets).sum() if scored else None, sum(out.aux.values()), state


Forward = Callable[..., tuple[Tensor | None, Tensor | float, State]]
"""As `segment_loss`."""


class Counts(NamedTuple):
    """Numbers of targets to divide by, where they must be on the device."""

    minimised: Tensor
    new: Tensor


class Update(NamedTuple):
    loss: Tensor
    """Mean nats per token, before the update; several processes each have their rows' share of it"""
    grad_norm: Tensor
    """Before clipping"""
    borders: tuple[tuple[State, ...], ...]
    """Behind every batch, the states of its parts"""
    accepted: bool = True
    """Whether the weights were updated"""

    @property
    def states(self) -> tuple[State, ...]:
        return self.borders[-1]


PartOfRows = Callable[[bool], AbstractContextManager[Any]]
"""Goes around the work on each part of the rows; told whether it is the last."""
Accept = Callable[[Tensor, Tensor], bool]
"""Whether the loss and the gradient's norm are such that the weights may be updated."""


def nothing_around(is_last: bool) -> AbstractContextManager[Any]:
    return nullcontext()


def update(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batch: Batch | Window,
    states: Sequence[State],
    *,
    clip: float | None,
    tokens: int | None = None,
    scaler: torch.amp.GradScaler | None = None,
    autocast: AbstractContextManager[Any] | None = None,
    forward: Forward = segment_loss,
    part_of_rows: PartOfRows = nothing_around,
    idle: Sequence[Tensor] = (),
    accept: Accept | None = None,
) -> Update:
    """One update from one batch, or from a window of them with gradient between them.

    Rows fall into as many parts as there are states, read one after the other.
    `tokens`: the batch's number of targets, where the caller knows it; counting on a device makes it wait.
    `idle`: weights that are left alone.
    """
    window = (
        batch if isinstance(batch, Window) else Window((batch,), (count_targets(batch) if tokens is None else tokens,))
    )
    optimizer.zero_grad(set_to_none=True)
    loss, borders = gradients(
        model, window, states, scaler=scaler, autocast=autocast, forward=forward, part_of_rows=part_of_rows
    )
    for parameter in idle:
        parameter.grad = None
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = clip_gradients(model.parameters(), clip)
    accepted = accept is None or accept(loss, norm)
    if accepted:
        optimizer.step() if scaler is None else scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    return Update(loss, norm, borders, accepted)


def gradients(
    model: Model,
    window: Window,
    states: Sequence[State],
    *,
    scaler: torch.amp.GradScaler | None = None,
    autocast: AbstractContextManager[Any] | None = None,
    forward: Forward = segment_loss,
    counts: Counts | None = None,
    part_of_rows: PartOfRows = nothing_around,
) -> tuple[Tensor, tuple[tuple[State, ...], ...]]:
    """Add a window's gradients to those of the weights; the loss, and the states behind every batch."""
    minimised = window.num_targets if counts is None else counts.minimised

    def step(segment: Batch, state: State, scored: bool) -> Read:
        with autocast or nullcontext():
            nll, aux, state = forward(model, segment, state, scored)
        if nll is None:
            return Read(None, state)
        objective = nll / minimised + aux * (len(segment.tokens) / window.num_rows / window.num_scored)
        objective = objective * window.weight if window.weight > 1 else objective
        return Read(scaler.scale(objective) if scaler else objective, state, nll.detach())

    parts = zip(*(split_rows(batch, len(states)) for batch in window.batches), strict=True)
    reads = []
    for number, (part, state) in enumerate(zip(parts, states, strict=True), 1):
        with part_of_rows(number == len(states)):
            reads.append(backward(step, part, state, scored=window.scored, method=window.method))
    new = [read.report for part in reads for read in part[window.num_again :] if read.report is not None]
    loss = torch.stack(new).sum() / (max(1, window.num_new) if counts is None else counts.new)
    return loss, tuple(zip(*([read.state for read in part] for part in reads), strict=True))


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    columns = [[None] * parts if column is None else column.tensor_split(parts) for column in batch]
    return [Batch(*part) for part in zip(*columns, strict=True)]


def fresh_states(model: Model, batch: int, parts: int, dtype: torch.dtype | None = None) -> tuple[State, ...]:
    """An empty state for every part of a batch's rows; layers remember in `dtype`, or in that of the weights."""
    sizes = [len(part) for part in torch.arange(batch).tensor_split(parts)]
    return tuple(model.init(size, dtype=dtype) for size in sizes)
