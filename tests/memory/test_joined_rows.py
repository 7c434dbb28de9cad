"""A memory that is a part of the rows joined for a layer, as on a GPU, against one that is copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.models import random_model, random_tokens
from helpers.recorders import Rerun
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.memory import XL, Plan
from mnemo.memory.xl.modules import XLState
from mnemo.model.layers.modules import TransformerLayer
from mnemo.model.positions import Rotary
from mnemo.recipes.recipe import OptimizerConfig, TrainConfig
from mnemo.training.engine import Engine
from mnemo.training.optimizers import build_optimizer
from mnemo.training.update_input import UpdateInput
from mnemo.training.weight_update import fresh_states

MODELS: dict[str, dict[str, Any]] = {
    "relative": {},
    "gates and rotary positions": dict(head_gate=True, qk_norm=True, positions=Rotary()),
}


def joining(self: TransformerLayer, x: Tensor, memory: Tensor) -> bool:
    return memory.shape[1] > x.shape[1]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_gradients_and_states_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for joins in (False, True):
        monkeypatch.setattr(TransformerLayer, "takes_joined", joining if joins else lambda *_: False)
        model, state, outputs = random_model(**MODELS[name], memory=Plan(long=XL(length=7))), None, []
        for seed in range(4):
            out, state = model(random_tokens(2, 3, seed=seed), state)
            outputs.append(out.hidden)
        held = _hidden(state)
        assert len(held) == len(model.layers()) and all(rows.is_contiguous() != joins for rows in held)
        gradients = torch.autograd.grad(torch.stack(outputs).square().sum(), list(model.stages.parameters()))
        results.append([*outputs, *held, *gradients])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, check_stride=False)


def _hidden(state: Any) -> list[Tensor]:
    """The rows of all XL memories in a state."""
    if isinstance(state, XLState):
        return [state.hidden]
    return [rows for part in state if isinstance(part, tuple) for rows in _hidden(part)]


def test_a_recorded_update_copies_such_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for joins in (False, True):
        monkeypatch.setattr(TransformerLayer, "takes_joined", joining if joins else lambda *_: False)
        torch.manual_seed(0)
        model = random_model(memory=Plan(long=XL(length=7)), dtype=torch.float32).train()
        config = TrainConfig(batch=2, segment=3, compile=False)
        engine = Engine(model, build_optimizer(model, OptimizerConfig(kind="sgd", lr=0.01)), config, recorder=Rerun())
        states, found = fresh_states(model, 2, 1), []
        for seed in range(3):
            tokens = random_tokens(2, 4, seed=seed)
            done = engine.update(UpdateInput.of([Batch(tokens[:, :-1], tokens[:, 1:])], 0, config), states, 0.01)
            states = done.states
            found.append(done.loss)
        results.append([*found, *(weight.detach() for weight in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)
