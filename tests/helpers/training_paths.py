"""Every way to compute a training step, and its differences from the plain path."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.models import random_tokens, set_seed
from helpers.option_places import (
    BATCH,
    EXACT,
    INTERPRETER,
    SEGMENT,
    Outcome,
    Place,
    at_place,
    differences,
    random_weights,
    with_state,
)
from helpers.recorders import Rerun

from mnemo.data.streams import Batch
from mnemo.memory import QRNN
from mnemo.memory.state import State
from mnemo.model import Model, ModelConfig
from mnemo.ops import using
from mnemo.recipes.recipe import OptimizerConfig, TrainConfig
from mnemo.training.bptt import Method, SegmentFunction, SegmentResult, backward
from mnemo.training.compiled_loss import CompiledLoss, against_compiling
from mnemo.training.engine import Engine
from mnemo.training.optimizers import build_optimizer
from mnemo.training.update_input import UpdateInput
from mnemo.training.weight_update import SegmentLoss, fresh_states, segment_loss

NUM_SEGMENTS = 3


def batches(model: Model) -> list[Batch]:
    """Segments of a text; a row starts anew in the third."""
    device = next(model.parameters()).device
    stream = random_tokens(BATCH, NUM_SEGMENTS * SEGMENT + 1, vocab_size=model.config.vocab_size).to(device)
    pairs = zip(stream[:, :-1].split(SEGMENT, 1), stream[:, 1:].split(SEGMENT, 1), strict=True)
    starts = torch.arange(BATCH, device=device) == 1
    return [Batch(*pair, None, starts if number == 2 else None) for number, pair in enumerate(pairs)]


def steps(model: Model, forward: SegmentLoss) -> SegmentFunction:
    def step(batch: Batch, state: State, scored: bool) -> SegmentResult:
        loss, z, aux, state = forward(model, batch, state, scored)
        return SegmentResult(None if loss is None else loss + z + aux, state)

    return step


def learned(
    model: Model, forward: SegmentLoss = segment_loss, method: Method = "plain", count: int = NUM_SEGMENTS
) -> Outcome:
    """Losses, the last state, and gradients of a window of segments."""
    model.zero_grad()
    set_seed(3)
    autocast = torch.is_autocast_enabled(next(model.parameters()).device.type)
    state = model.init(BATCH, dtype=torch.bfloat16 if autocast else None)
    results = backward(steps(model, forward), batches(model)[:count], state, method=method)
    losses = {f"loss.{number}": result.loss for number, result in enumerate(results) if result.loss is not None}
    gradients = {f"gradient.{name}": weight.grad for name, weight in model.named_parameters()}
    return with_state({**losses, **{k: g for k, g in gradients.items() if g is not None}}, results[-1].state)


def recomputed(model: Model) -> Outcome:
    return learned(model, partial(segment_loss, recompute=True))


def checkpointed(model: Model) -> Outcome:
    return learned(model, method="checkpoint")


def replayed(model: Model) -> Outcome:
    return learned(model, method="replay")


def by_reference(model: Model) -> Outcome:
    with using("reference"):
        return learned(model)


def compiled_layers(model: Model) -> Outcome:
    torch._dynamo.reset()
    forward = CompiledLoss(model, length=SEGMENT, recompute=False, note=pytest.fail, backend="eager", by_layer=True)
    # The CPU's attention is no part of a compiled graph.
    with using("reference" if next(model.parameters()).device.type == "cpu" else "auto"):
        return learned(model, forward)


def draws(config: ModelConfig) -> bool:
    """Whether training draws random numbers, whose order differs between some paths."""
    rates = [getattr(config.dropout, field.name) for field in fields(config.dropout) if field.name != "locked"]
    memories = config.memory.memories(config.num_layers)
    return any(rates) or any(isinstance(memory, QRNN) and memory.zoneout for memory in memories)


def always(model: Model) -> bool:
    return True


def is_exact(model: Model) -> bool:
    """Whether another order of sums changes little: half precision would switch units of the feed-forward."""
    return not draws(model.config) and not torch.is_autocast_enabled(next(model.parameters()).device.type)


def can_compile(model: Model) -> bool:
    return not draws(model.config) and against_compiling(model) is None


Path = tuple[Callable[[Model], Outcome], Callable[[Model], bool]]
PATHS: dict[str, Path] = {
    "recompute": (recomputed, always),
    "checkpoint": (checkpointed, always),
    "replay": (replayed, always),
    "reference attention": (by_reference, is_exact),
}
"""Each with the models that it takes."""


def wrong(config: ModelConfig, place: Place, paths: dict[str, Path]) -> list[str]:
    """What differs from the plain path at the same place, with the same random numbers."""
    model, autocast = trainee(config, place)
    with autocast:
        want = {name: tensor.cpu() for name, tensor in learned(model).items()}
        applied = {name: run for name, (run, takes) in paths.items() if takes(model)}
        return [line for name, run in applied.items() for line in differences(name, run(model), want, place.dtype)]


def trainee(config: ModelConfig, place: Place) -> tuple[Model, Any]:
    """A model in training mode, and autocast where a place computes in half precision: weights are single there."""
    half = place.dtype == torch.bfloat16
    weights = Place(place.device, torch.float32) if half else place
    model, _ = at_place(random_weights(config, 0.3 if place == EXACT else 0.1).train(), weights)
    return model, torch.autocast(place.device, torch.bfloat16) if half else nullcontext()


def in_kernels(config: ModelConfig, place: Place) -> list[str]:
    """What differs between training with a GPU's kernels and plain training in float64 on the CPU."""
    model, _ = trainee(config, place)
    _, exact = at_place(model, EXACT)
    with using("fused" if place == INTERPRETER else "auto"):
        found = learned(model, count=2)
    return differences("kernels", found, learned(exact, count=2), place.dtype)


def updated(model: Model, config: TrainConfig, recorder: Any) -> Outcome:
    """Losses of some updates, and the weights and the state that they end with."""
    optimizer = build_optimizer(model, OptimizerConfig(kind="sgd"))
    engine = Engine(model, optimizer, config, recorder=recorder)
    states, losses = fresh_states(model, BATCH, 1), {}
    for number, batch in enumerate(batches(model)):
        done = engine.update(UpdateInput.of([batch], 0, config), states, lr=2.0**-4)  # exact in single precision
        states, losses[f"loss.{number}"] = done.states, done.loss.clone()
    assert (engine._recorded is not None) == (engine.not_recorded is None)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return with_state({**losses, **weights}, states[0])


def recorded_and_plain(config: ModelConfig, place: Place) -> tuple[Outcome, Outcome]:
    # Built twice with the same weights: a copy of an LSTM on a GPU loses the one buffer that its weights share.
    (model, _), (other, _) = trainee(config, place), trainee(config, place)
    train = TrainConfig(batch=BATCH, segment=SEGMENT, compile=False)
    plain = updated(other, replace(train, cuda_graph=False), None)
    return updated(model, train, Rerun() if place == EXACT else None), {k: v.cpu() for k, v in plain.items()}
