"""Matrices cast once for an update against autocast, which casts them in every product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.mechanisms import MECHANISMS
from helpers.recorders import Rerun
from helpers.tolerances import assert_close
from torch import Tensor, nn

from mnemo.data.streams import Batch
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Rotary
from mnemo.recipes.recipe import OptimizerConfig, TrainConfig
from mnemo.training import engine as engine_module
from mnemo.training import recorded_update
from mnemo.training.engine import Engine
from mnemo.training.half_gradients import clipped_step
from mnemo.training.half_weights import HalfWeights, may_keep_gradients, product_maps
from mnemo.training.optimizers import build_optimizer
from mnemo.training.update_input import UpdateInput, after_update
from mnemo.training.weight_update import fresh_states

TINY: dict[str, Any] = dict(vocab_size=11, num_layers=3, dim=16, num_heads=2, head_dim=8, inner_dim=24)
MODERN: dict[str, Any] = dict(norm="pre", norm_kind="rms", qk_norm=True, head_gate=True, positions=Rotary())
MEMORY = Plan(long=XL(length=7))
TOKENS: dict[str, Any] = dict(tokens=MemoryTokens(num=2), memory=Plan(long=XL(length=3)))
BINS = EmbeddingConfig(cutoffs=(3, 6))


def trained(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    settings: dict[str, Any],
    *,
    half: bool,
    optimizer: OptimizerConfig = OptimizerConfig(lr=0.01),
    **more: Any,
) -> list[Tensor]:
    """Losses, norms and weights of three recorded updates in bf16."""
    if not half:
        monkeypatch.setattr(engine_module, "may_keep_gradients", lambda maps, num_segments: False)
    torch.manual_seed(0)
    model = Model(ModelConfig(**{**TINY, "dropout": DropoutConfig.published(0.1), **options})).train()
    config = TrainConfig(**{"batch": 4, "segment": 6, "precision": "bf16", "compile": False, **settings})
    engine = Engine(model, build_optimizer(model, optimizer), config, recorder=Rerun(), **more)
    states, random, found = fresh_states(model, 4, config.accumulate, torch.bfloat16), torch.Generator(), []
    for _ in range(3):
        text = torch.randint(11, (1 + config.bptt, 4, 7), generator=random)
        batches = [Batch(rows[:, :-1], rows[:, 1:]) for rows in text]
        done = engine.update(UpdateInput.of(batches, 0, config), states, 0.01)
        states, _ = after_update(states, done.borders, ({},) * len(batches), config)
        found += [done.loss, done.grad_norm]
    assert engine._recorded is not None
    assert (engine._recorded._half is not None) == (half and config.accumulate == 1 and bool(product_maps(model)))
    return [*found, *(weight.detach() for weight in model.parameters())]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "xl": ({"memory": MEMORY}, {}),
    "modern": ({"memory": MEMORY, **MODERN}, {}),
    "adaptive softmax": ({"memory": MEMORY, "embedding": BINS}, {"segment": 6}),
    "three segments": (TOKENS, {"bptt": 2, "bptt_window": "tumbling"}),
    "six segments": (TOKENS, {"bptt": 5, "bptt_window": "tumbling"}),
    "recomputed": ({"memory": MEMORY}, {"recompute": "layer"}),
    "parts": ({"memory": MEMORY}, {"accumulate": 2}),
    "no transformer layers": (MECHANISMS["qrnn"], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_number_is_that_of_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = (trained(monkeypatch, *CASES[name], half=half) for half in (True, False))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_large_models_keep_the_gradients_of_few_segments() -> None:
    small, large = [nn.Linear(256, 1024)], [nn.Linear(4096, 8192, device="meta")]
    assert may_keep_gradients(small, 4) and may_keep_gradients(small, 500)
    assert may_keep_gradients(large, 4) and not may_keep_gradients(large, 5)


def test_a_matrix_that_is_used_twice_differs_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**MECHANISMS["lookahead"], "dropout": DropoutConfig()}
    found, expected = (trained(monkeypatch, options, {}, half=half) for half in (True, False))
    for a, b in zip(found, expected, strict=True):
        assert_close(a.bfloat16(), b.bfloat16())


@pytest.mark.parametrize("name", ["xl", "modern", "three segments"])
def test_recorded_updates_take_steps_from_half_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs in Triton's interpreter; with several segments, gradients are added up first."""
    pytest.importorskip("triton")
    options, settings = CASES[name]
    plain = trained(monkeypatch, options, settings, half=True)
    calls: list[int] = []

    def counted(optimizer: Any, gradients: Any, limit: Any) -> Tensor:
        calls.append(len(gradients))
        return clipped_step(optimizer, gradients, limit)

    monkeypatch.setattr(recorded_update, "takes_half_gradients", lambda optimizer, device: True)
    monkeypatch.setattr(recorded_update, "clipped_step", counted)
    found = trained(monkeypatch, options, settings, half=True)
    assert bool(calls) == (name != "three segments") and all(calls)
    for a, b in zip(found, plain, strict=True):
        assert_close(a, b)


def test_a_profile_knows_steps_from_half_gradients() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    weight.grad = torch.ones(2, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        clipped_step(torch.optim.AdamW([weight]), {}, 1.0)
    assert any(event.key.startswith("Optimizer.step#AdamW.clipped") for event in profile.key_averages())


def test_recorded_updates_of_muon_take_half_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    options, settings = CASES["modern"]
    muon = OptimizerConfig(kind="muon", lr=0.01, adam_lr=0.01, clip=0.5)
    plain = trained(monkeypatch, options, settings, half=True, optimizer=muon)
    monkeypatch.setattr(recorded_update, "takes_half_gradients", lambda optimizer, device: True)
    found = trained(monkeypatch, options, settings, half=True, optimizer=muon)
    for a, b in zip(found, plain, strict=True):
        assert_close(a, b)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("how", [pytest.param(True, marks=pytest.mark.thorough), "layers"])
def test_segments_and_layers_share_compiled_code(how: Any, reference_op: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "COMPILED_DEVICES", ("cpu",))
    options = {**TOKENS, "num_layers": 2, "dropout": DropoutConfig()}
    settings = {"bptt": 2, "bptt_window": "tumbling", "compile": how}
    counts, results = [], []
    for half in (True, False):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        results.append(trained(monkeypatch, options, settings, half=half, backend="aot_eager", note=pytest.fail))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == counts[1]
    for a, b in zip(*results, strict=True):
        assert_close(a.bfloat16(), b.bfloat16())


def test_the_model_itself_keeps_its_weights() -> None:
    model = Model(ModelConfig(**TINY, memory=MEMORY))
    before = dict(model.named_parameters())
    half = HalfWeights(model, torch.bfloat16)
    half.refresh()
    half.begin_segment()
    assert all(weight is before[name] for name, weight in model.named_parameters())
    types = {name: weight.dtype for name, weight in half.model.named_parameters()}
    narrow = {name for name, dtype in types.items() if dtype == torch.bfloat16}
    weights = {each.weight for each in product_maps(model)}
    assert narrow == {name for name, weight in before.items() if weight in weights}
    assert all(half.model.get_parameter(name) is before[name] for name in before.keys() - narrow)


def test_all_maps_but_those_multiplied_with_a_norm_are_cast() -> None:
    for options, left in (({}, ()), (MODERN, ("query", "key_value", "gate.linear"))):
        model = Model(ModelConfig(**{**TINY, **options}))
        maps = set(product_maps(model))
        linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        others = [name for name, module in linear if module not in maps]
        assert len(others) == len(left) * TINY["num_layers"] and all(name.endswith(left) for name in others)
