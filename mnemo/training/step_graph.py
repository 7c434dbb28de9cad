"""A whole update as one recorded program: forward and backward passes, clipping, the optimizer.

A CUDA graph replays kernels on the memory that they were recorded with. So a program's inputs are buffers that are
filled before each replay, what changes from step to step (the learning rate, numbers of targets) is on the device, and
what it gives is overwritten by the next replay. States that it gives back are lent until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model
from mnemo.training.optimizers import clip_gradients
from mnemo.training.segment_window import Window
from mnemo.training.step import Counts, Forward, Update, gradients

WARMUP = 3
"""Updates before recording, undone afterwards: compilers, autotuners and libraries set themselves up in them."""


class Recorder(Protocol):
    def warm(self, program: Callable[[], Any]) -> None:
        """Run a program until nothing is set up any more."""
        ...

    def record(self, program: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """What a program gives, in memory that every call of the second thing fills anew."""
        ...


class CudaRecorder:
    def warm(self, program: Callable[[], Any]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                program()
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, program: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = program()
        return output, graph.replay


def takes_tensor_rates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step can be recorded: its learning rates may be tensors, and it asks the device nothing."""
    return isinstance(optimizer, torch.optim.SGD) or all("capturable" in group for group in optimizer.param_groups)


def put_rates_on_device(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        if "capturable" in group and device.type == "cuda":
            group["capturable"] = True


@contextmanager
def unchanged(model: Model, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Weights, moments and random generators are afterwards what they were before; new moments are zero."""
    device = next(model.parameters()).device
    weights = [_aside(parameter) for parameter in model.parameters()]
    moments = {
        parameter: {key: _aside(value) if isinstance(value, Tensor) else value for key, value in values.items()}
        for parameter, values in optimizer.state.items()
    }
    chance = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
            for parameter, values in optimizer.state.items():
                _restore(values, moments.get(parameter, {}))
        optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(chance[0])
        if chance[1] is not None:
            torch.cuda.set_rng_state(chance[1], device)


def _aside(tensor: Tensor) -> Tensor:
    """A copy in the host's memory: the device's may be full."""
    return tensor.detach().to("cpu", copy=True)


def _restore(values: dict[str, Any], before: dict[str, Any]) -> None:
    """In place, because a recorded program knows the tensors."""
    for key, value in values.items():
        if not isinstance(value, Tensor):
            values[key] = before.get(key, value)
        elif key in before:
            value.copy_(before[key])
        else:
            value.zero_()


class RecordedUpdate:
    """`update` for windows of one form."""

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        window: Window,
        states: Sequence[State],
        *,
        clip: float | None,
        autocast: AbstractContextManager[Any],
        forward: Forward,
        recorder: Recorder,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._clip, self._autocast, self._forward = clip, autocast, forward
        device = next(model.parameters()).device
        self._window = window.map(lambda batch: _buffers(batch, device))
        first, *others = self._window.batches
        self._window = replace(self._window, batches=(first._replace(starts=None), *others))
        self._states = tuple(tree_map(torch.clone, state) for state in states)
        self._counts = Counts(torch.ones((), device=device), torch.ones((), device=device))
        self._optimizer_inside = takes_tensor_rates(optimizer)
        if self._optimizer_inside:
            put_rates_on_device(optimizer, device)
        self._fill(window, states)
        with unchanged(model, optimizer):
            recorder.warm(self._program)
            output, self._replay = recorder.record(self._program)
        *found, self._gradients = output
        self._output = Update(*found)

    def _program(self) -> tuple[Tensor, Tensor, tuple[tuple[State, ...], ...], tuple[Tensor | None, ...]]:
        """Loss, gradient norm, states behind every batch, gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, borders = gradients(
            self.model,
            self._window,
            self._states,
            autocast=self._autocast,
            forward=self._forward,
            counts=self._counts,
        )
        norm = clip_gradients(self.model.parameters(), self._clip)
        if self._optimizer_inside:
            self.optimizer.step()
        return loss, norm, borders, tuple(parameter.grad for parameter in self.model.parameters())

    def fits(self, window: Window) -> bool:
        return _form(window) == _form(self._window)

    def __call__(self, window: Window, states: Sequence[State]) -> Update:
        """The states of the result are lent until the next call."""
        self._fill(window, states)
        self._replay()
        if not self._optimizer_inside:
            for parameter, gradient in zip(self.model.parameters(), self._gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
        return self._output._replace(loss=self._output.loss.clone(), grad_norm=self._output.grad_norm.clone())

    @torch.no_grad()
    def _fill(self, window: Window, states: Sequence[State]) -> None:
        for buffers, batch in zip(self._window.batches, window.batches, strict=True):
            buffers.tokens.copy_(batch.tokens, non_blocking=True)
            buffers.targets.copy_(batch.targets, non_blocking=True)
            if buffers.starts is not None:
                buffers.starts.copy_(_starts(batch), non_blocking=True)
        self._counts.minimised.fill_(window.num_targets)
        self._counts.new.fill_(max(1, window.num_new))
        _copy(states, self._states)
        starts = window.batches[0].starts
        if starts is not None:
            rows = starts.to(self._counts.new.device, non_blocking=True).tensor_split(len(states))
            for state, begin in zip(self._states, rows, strict=True):
                _empty(state, begin)


def _form(window: Window) -> tuple[Any, ...]:
    shapes = [(batch.tokens.shape, batch.targets.shape, batch.lengths is None) for batch in window.batches]
    return shapes, window.num_again, window.scored, window.method


def _starts(batch: Batch) -> Tensor:
    return torch.zeros(len(batch.tokens), dtype=torch.bool) if batch.starts is None else batch.starts


def _buffers(batch: Batch, device: torch.device) -> Batch:
    tokens, targets = (part.to(device, copy=True) for part in (batch.tokens, batch.targets))
    return Batch(tokens, targets, None, _starts(batch).to(device, copy=True))


def _copy(source: Sequence[State], target: Sequence[State]) -> None:
    """Leaf by leaf, many at once, but for those that are the same."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for (_, old), (_, new) in zip(leaves(tuple(source)), leaves(tuple(target)), strict=True):
        if old is not new and new.numel():
            into, out_of = by_type.setdefault(new.dtype, ([], []))
            into.append(new)
            out_of.append(old)
    for into, out_of in by_type.values():
        torch._foreach_copy_(into, out_of)  # pyright: ignore[reportPrivateImportUsage]


def _empty(state: State, rows: Tensor) -> None:
    for _, leaf in leaves(state):
        leaf.masked_fill_(rows.view(-1, *[1] * (leaf.dim() - 1)), 0)
