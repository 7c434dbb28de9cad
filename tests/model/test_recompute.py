"""Layers that are computed again in the backward pass, and states in half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.mechanisms import MECHANISMS, few_first
from helpers.tolerances import assert_close
from torch import Tensor

from mnemo.memory import XL, Lookahead, Plan
from mnemo.memory.lookahead.modules import coefficient
from mnemo.memory.state import State, detach, leaves
from mnemo.model import Model, ModelConfig
from mnemo.model.layers import DropoutConfig

TINY = dict(vocab_size=11, num_layers=3, dim=8, num_heads=2, head_dim=4, inner_dim=12)


def tiny(**options: Any) -> Model:
    if isinstance(options.get("memory"), int):
        options["memory"] = Plan(long=XL(length=options["memory"]))
    torch.manual_seed(0)
    return Model(ModelConfig(**{**TINY, **options})).train()


def read(model: Model, state: State, recompute: bool) -> tuple[list[Tensor], State, int]:
    """Loss and gradients of a segment with dropout, the next state, and how many numbers were kept."""
    torch.manual_seed(7)
    tokens, kept = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(1)), {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr(), tensor.shape] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out, state = model(tokens, state, recompute=recompute)
        loss = model.loss(out, tokens).sum() + sum(out.aux.values())
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [loss, *(g for g in gradients if g is not None)], state, sum(kept.values())


KINDS = ("xl", "lookahead", "compressive", "rmt-with-cache", "rmt-lookahead", "armt-heads-gates", "infinite")


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_same_dropout_included(name: str) -> None:
    model = tiny(dropout=DropoutConfig.published(0.3, 0.2), **MECHANISMS[name]).double()
    states = [model.init(2)] * 2
    for _ in range(3):
        (plain, first, all_kept), (again, second, kept) = (
            read(model, state, recompute) for state, recompute in zip(states, (False, True), strict=True)
        )
        for found, expected in zip(again, plain, strict=True):
            assert_close(found, expected)
        for (_, found), (_, expected) in zip(leaves(second), leaves(first), strict=True):
            assert_close(found, expected)
        assert kept < all_kept or name == "infinite"
        states = [detach(first), detach(second)]


def test_what_is_kept_does_not_grow_with_what_is_inside_a_layer() -> None:
    narrow, wide = (tiny(memory=4, inner_dim=inner) for inner in (12, 1200))
    assert read(wide, wide.init(2), True)[2] - read(narrow, narrow.init(2), True)[2] == 0
    assert read(wide, wide.init(2), False)[2] - read(narrow, narrow.init(2), False)[2] > 2 * 6 * 1188


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # some processors claim bf16 and die of it


HALF = [case for case in few_first() if case.values != ("rmt-qrnn-above-lookahead",)]


@pytest.mark.parametrize("name", HALF)
def test_states_keep_their_types_under_autocast(name: str, half: None) -> None:
    model = tiny(**MECHANISMS[name])
    state, tokens = model.init(2, dtype=torch.bfloat16), torch.randint(11, (2, 5))
    types = {path: leaf.dtype for path, leaf in leaves(state)}
    assert all(dtype != torch.bfloat16 for path, dtype in types.items() if "lse" in path or "usage" in path)
    if name in ("xl-plan", "lookahead"):
        assert torch.bfloat16 in types.values()
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            out, state = model(tokens, state)
        assert {path: leaf.dtype for path, leaf in leaves(state)} == types
    if name in ("xl-plan", "lookahead"):
        assert out.hidden.dtype == torch.bfloat16


def test_look_ahead_does_not_overflow_in_half_precision(half: None) -> None:
    """Scores of hundreds: the published sums of their exponentials are infinite in fp16, and beyond 88 in fp32."""
    past, ahead = torch.tensor([12.0, 300.0, -300.0]), torch.tensor([11.0, 301.0, 5.0])
    wide = coefficient(past.double(), ahead.double(), 1e-6)
    assert_close(coefficient(past, ahead, 1e-6), wide.float())
    assert coefficient(past, ahead, 1e-6).isfinite().all() and not past.half().exp().isfinite().all()

    model = tiny(memory=Plan(long=Lookahead(length=6)))
    with torch.no_grad():
        for layer in model.layers():
            layer.attention.query.weight.mul_(400)
            layer.attention.key_value.weight.mul_(40)
    tokens, losses = torch.randint(11, (2, 6)), []
    for dtype in (torch.float16, None):
        state = model.init(2, dtype=dtype)
        for _ in range(3):
            with torch.autocast("cpu", torch.float16, enabled=dtype is not None):
                out, state = model(tokens, state)
                loss = model.loss(out, tokens).mean()
            assert all(leaf.isfinite().all() for _, leaf in leaves(state))
        losses.append(float(loss.detach()))
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    largest = max(float(leaf.max()) for path, leaf in leaves(state) if "lse" in path)
    assert largest > 12 and losses[0] == pytest.approx(losses[1], rel=0.02)
