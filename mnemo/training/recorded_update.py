"""A whole update as one CUDA graph: forward and backward passes, clipping, the optimizer.

A CUDA graph replays kernels on the memory of the recording. Its inputs are therefore buffers that are filled before
each replay, and numbers that change from step to step (learning rate, numbers of targets) are tensors on the device.
The next replay overwrites the results: returned states may be used only until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.inference.cuda_graph import Recorder
from mnemo.memory.protocol import copy_rows
from mnemo.memory.state import State, leaves, tree_map
from mnemo.model import Model
from mnemo.training.half_gradients import clipped_step, takes_half_gradients
from mnemo.training.half_weights import HalfWeights
from mnemo.training.mean_norm import MeanNorm
from mnemo.training.optimizers import clip_gradients
from mnemo.training.update_input import UpdateInput
from mnemo.training.weight_update import Counts, SegmentLoss, Update, gradients

WARMUP_UPDATES = 3
"""Updates before the recording, which are undone after it."""


def takes_tensor_rates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step can be recorded: learning rates may be tensors, and it never waits for the device."""
    return isinstance(optimizer, torch.optim.SGD) or all("capturable" in group for group in optimizer.param_groups)


def put_rates_on_device(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Turn learning rates into tensors, which a recorded step reads in every replay."""
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        if "capturable" in group and device.type == "cuda":
            group["capturable"] = True


@contextmanager
def unchanged(model: Model, optimizer: torch.optim.Optimizer, mean_norm: MeanNorm | None = None) -> Iterator[None]:
    """Restore weights, moments and random generators at the end; moments that are new by then become zero."""
    device = next(model.parameters()).device
    weights = [_host_copy(parameter) for parameter in model.parameters()]
    moments = {
        parameter: {key: _host_copy(value) if isinstance(value, Tensor) else value for key, value in values.items()}
        for parameter, values in optimizer.state.items()
    }
    mean = None if mean_norm is None else _host_copy(mean_norm.mean)
    generators = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
            for parameter, values in optimizer.state.items():
                _restore(values, moments.get(parameter, {}))
            if mean_norm is not None and mean is not None:
                mean_norm.mean.copy_(mean)
        optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(generators[0])
        if generators[1] is not None:
            torch.cuda.set_rng_state(generators[1], device)


def _host_copy(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, because that of the device may be full."""
    return tensor.detach().to("cpu", copy=True)


def _restore(values: dict[str, Any], before: dict[str, Any]) -> None:
    """Restore in place, because a recorded step uses these tensors."""
    for key, value in values.items():
        if not isinstance(value, Tensor):
            values[key] = before.get(key, value)
        elif key in before:
            value.copy_(before[key])
        else:
            value.zero_()


class RecordedUpdate:
    """`update` as a recording, for inputs of one shape."""

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        inputs: UpdateInput,
        states: Sequence[State],
        *,
        clip: float | None,
        autocast: AbstractContextManager[Any],
        forward: SegmentLoss,
        recorder: Recorder,
        mean_norm: MeanNorm | None = None,
        half: HalfWeights | None = None,
    ) -> None:
        """`half`: copies of the model's matrices, with which `forward` computes."""
        self.model, self.optimizer, self._mean_norm, self._half = model, optimizer, mean_norm, half
        self._clip, self._autocast, self._forward = clip, autocast, forward
        device = next(model.parameters()).device
        self._inputs = inputs.map(lambda batch: _buffers(batch, device))
        first, *others = self._inputs.batches
        self._inputs = replace(self._inputs, batches=(first._replace(starts=None), *others))
        self._states = tuple(tree_map(torch.clone, state) for state in states)
        self._counts = Counts(torch.ones((), device=device), torch.ones((), device=device))
        self._optimizer_inside = takes_tensor_rates(optimizer)
        if self._optimizer_inside:
            put_rates_on_device(optimizer, device)
        self._steps_in_half = mean_norm is None and takes_half_gradients(optimizer, device)
        self._fill(inputs, states)
        with unchanged(model, optimizer, mean_norm):
            recorder.warm(self._update)
            output, self._replay = recorder.record(self._update)
        *found, self._gradients = output
        self._output = Update(*found)

    def _update(self) -> tuple[Tensor, Tensor, tuple[tuple[State, ...], ...], tuple[Tensor | None, ...]]:
        """Return loss, gradient norm, states after every batch, gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._half is not None:
            self._half.refresh()
        loss, borders = gradients(
            self.model,
            self._inputs,
            self._states,
            autocast=self._autocast,
            forward=self._forward,
            counts=self._counts,
        )
        norm = self._clipped_step()
        return loss, norm, borders, tuple(parameter.grad for parameter in self.model.parameters())

    def _clipped_step(self) -> Tensor:
        """Clip the gradients and, if possible here, update the weights; return the norm before."""
        if self._half is not None:
            half = self._half.only_gradients() if self._steps_in_half else None
            if half is not None:
                return clipped_step(self.optimizer, half, self._clip)
            self._half.add_gradients()
        norm = clip_gradients(self.model.parameters(), self._clip, self._mean_norm)
        if self._optimizer_inside:
            self.optimizer.step()
        return norm

    def fits(self, inputs: UpdateInput) -> bool:
        return _shape(inputs) == _shape(self._inputs)

    def __call__(self, inputs: UpdateInput, states: Sequence[State]) -> Update:
        """Update the weights. The next call overwrites the returned states."""
        self._fill(inputs, states)
        self._replay()
        if not self._optimizer_inside:
            for parameter, gradient in zip(self.model.parameters(), self._gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
        return self._output._replace(loss=self._output.loss.clone(), grad_norm=self._output.grad_norm.clone())

    def run_without_graph(self) -> None:
        """Compute the recorded update once more, launched kernel by kernel, as a profiler needs it.

        Gradients are then new tensors, so the recording must not be used any more.
        """
        self._update()

    @torch.no_grad()
    def _fill(self, inputs: UpdateInput, states: Sequence[State]) -> None:
        for buffers, batch in zip(self._inputs.batches, inputs.batches, strict=True):
            buffers.tokens.copy_(batch.tokens, non_blocking=True)
            buffers.targets.copy_(batch.targets, non_blocking=True)
            if buffers.starts is not None:
                buffers.starts.copy_(_starts(batch), non_blocking=True)
        self._counts.minimised.fill_(inputs.num_targets)
        self._counts.new.fill_(max(1, inputs.num_new))
        _copy(states, self._states)
        starts = inputs.batches[0].starts
        if starts is not None:
            rows = starts.to(self._counts.new.device, non_blocking=True).tensor_split(len(states))
            for state, begin in zip(self._states, rows, strict=True):
                _empty(state, begin)


def _shape(inputs: UpdateInput) -> tuple[Any, ...]:
    shapes = [(batch.tokens.shape, batch.targets.shape, batch.lengths is None) for batch in inputs.batches]
    return shapes, inputs.num_again, inputs.scored, inputs.method


def _starts(batch: Batch) -> Tensor:
    return torch.zeros(len(batch.tokens), dtype=torch.bool) if batch.starts is None else batch.starts


def _buffers(batch: Batch, device: torch.device) -> Batch:
    tokens, targets = (part.to(device, copy=True) for part in (batch.tokens, batch.targets))
    return Batch(tokens, targets, None, _starts(batch).to(device, copy=True))


def _copy(source: Sequence[State], target: Sequence[State]) -> None:
    """Copy all leaves, except those that are the same tensors, in one operation for each dtype.

    Leaves that are parts of larger tensors are copied one by one.
    """
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for (_, old), (_, new) in zip(leaves(tuple(source)), leaves(tuple(target)), strict=True):
        if old is new or not new.numel():
            continue
        if not old.is_contiguous() and old.dim() == 3 and old.dtype == new.dtype:
            copy_rows(old, new)
        else:
            into, out_of = by_type.setdefault(new.dtype, ([], []))
            into.append(new)
            out_of.append(old)
    for into, out_of in by_type.values():
        torch._foreach_copy_(into, out_of)  # pyright: ignore[reportPrivateImportUsage]


def _empty(state: State, rows: Tensor) -> None:
    """Clear the memories of some rows: an empty state is all zeros."""
    for _, leaf in leaves(state):
        leaf.masked_fill_(rows.view(-1, *[1] * (leaf.dim() - 1)), 0)
