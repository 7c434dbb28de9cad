"""The fast training step against the plain one: compiled, recorded, recomputed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from mechanisms import MECHANISMS
from tolerances import assert_close
from torch import Tensor

from mnemo import layers, ops
from mnemo.data.streams import Batch
from mnemo.layers import DropoutConfig
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.model import Model, ModelConfig
from mnemo.optimize import build_optimizer
from mnemo.recipe import OptimizerConfig, TrainConfig
from mnemo.state import leaves, tree_map, tree_zip
from mnemo.train import fresh_states
from mnemo.train.engine import Engine
from mnemo.train.pace import pace
from mnemo.train.window import Window, go_on

TINY = dict(vocab_size=11, num_layers=3, dim=8, num_heads=2, head_dim=4, inner_dim=12)
UNCOMPILED = ("infinite", "lstm")


def tiny(**options: Any) -> Model:
    if isinstance(options.get("memory"), int):
        options["memory"] = Plan(long=XL(length=options["memory"]))
    torch.manual_seed(0)
    return Model(ModelConfig(**{**TINY, **options})).double().train()


@pytest.fixture
def reference_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """The equation itself instead of the CPU's kernels, which are no part of a compiled graph."""

    def reference(*tensors: Tensor, with_lse: bool = False, impl: str = "auto", **see: Any) -> tuple[Tensor, Tensor]:
        attended = ops.relative_attention_reference(*tensors, **see)
        return attended.out, attended.lse

    monkeypatch.setattr(layers, "relative_attention", reference)


class Rerun:
    """Records on a CPU: a program is run again, and what it gives is put where it was first."""

    def __init__(self) -> None:
        self.undo: Callable[[], Any] | None = None

    def warm(self, program: Callable[[], Any]) -> None:
        program()

    def record(self, program: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        output = tree_map(torch.clone, program())

        def replay() -> None:
            tree_zip(lambda old, new: old.copy_(new), output, program())

        return output, replay


def windows(config: TrainConfig, count: int, vocab: int = 11) -> list[Window]:
    """Random batches; the third one is short, and rows start anew before the fifth."""
    generator, result, past = torch.Generator().manual_seed(1), [], []
    again = config.bptt if config.bptt_window == "sliding" else 0
    for number in range(count):
        batches = []
        for _ in range(1 if config.bptt_window == "sliding" else 1 + config.bptt):
            length = config.segment - 2 * (number == 2)
            tokens, targets = torch.randint(vocab, (2, config.batch, length), generator=generator)
            starts = torch.arange(config.batch) == 1 if number == 4 else None
            batches.append(Batch(tokens, targets, None, starts))
        seen = [*past, *batches]
        result.append(Window.of(seen, len(past), config))
        past = seen[-again:] if again else []
    return result


def trained(engine: Engine, steps: list[Window], config: TrainConfig) -> tuple[list[Tensor], Any]:
    """Losses, gradient norms and weights of a run, and the states that it ends with."""
    states, past, found = fresh_states(engine.model, config.batch, config.accumulate), (), []
    for number, window in enumerate(steps):
        done = engine.update(window, states, lr=2.0**-7 * (1 + number))
        begins = (*past, *({"number": number} for _ in window.batches[len(past) :]))
        states, past = go_on(states, done.borders, begins, config)
        found += [done.loss, done.grad_norm]
    return [*found, *(p.detach() for p in engine.model.parameters())], states


def same(found: tuple[list[Tensor], Any], expected: tuple[list[Tensor], Any]) -> None:
    for a, b in zip(found[0], expected[0], strict=True):
        assert_close(a, b)
    for (path, a), (_, b) in zip(leaves(found[1]), leaves(expected[1]), strict=True):
        assert_close(a, b, msg=lambda text, path=path: f"{path}: {text}")


def compare(
    model: dict[str, Any], config: TrainConfig, optimizer: OptimizerConfig | None = None, **options: Any
) -> None:
    """The same training by a plain engine and by one with options."""
    results = []
    for plain in (True, False):
        this = tiny(**model)
        settings = replace(config, compile=False) if plain else config
        engine = Engine(
            this, build_optimizer(this, optimizer or OptimizerConfig()), settings, **({} if plain else options)
        )
        results.append(trained(engine, windows(config, 6), config))
        if not plain and "recorder" in options:
            assert engine._recorded is not None
    same(results[1], results[0])


QUICK = ("xl", "lookahead", "compressive", "rmt-with-cache")
SLOW = [name for name in MECHANISMS if name not in QUICK and not name.startswith((*UNCOMPILED, "qrnn-kernels"))]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_compiled_training_is_the_plain_training(name: str, reference_op: None) -> None:
    torch._dynamo.reset()
    notes: list[str] = []
    options = {"dropout": DropoutConfig(), **MECHANISMS[name]}
    compare(options, TrainConfig(batch=2, segment=5, compile=True), backend="eager", note=notes.append)
    assert notes == []


BPTT = {"tokens": MemoryTokens(num=2), "memory": 3}
RECORDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "xl": ({"memory": 7}, {}),
    "parts": ({"memory": 7}, {"accumulate": 2}),
    "lookahead": (MECHANISMS["lookahead"], {}),
    "compressive": (MECHANISMS["compressive"], {}),
    "tumbling": (BPTT, {"bptt": 2, "bptt_window": "tumbling"}),
    "sliding": (BPTT, {"bptt": 2}),
    "sliding-stale": (BPTT, {"bptt": 1, "bptt_stale": True, "bptt_loss": "all"}),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_training_is_the_plain_training(name: str) -> None:
    model, settings = RECORDED[name]
    config = TrainConfig(**{"batch": 3, "segment": 5, "compile": False, **settings})
    compare(model, config, recorder=Rerun())


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_every_optimizer_is_recorded(kind: Any) -> None:
    optimizer = OptimizerConfig(kind=kind, momentum=0.9, weight_decay=0.1)
    compare({"memory": 4}, TrainConfig(batch=2, segment=5, compile=False), optimizer, recorder=Rerun())


def test_the_pace_of_a_model_is_measured() -> None:
    config = TrainConfig(batch=2, segment=5, bptt=1, device="cpu")
    found = pace(ModelConfig(**TINY, tokens=MemoryTokens(num=2)), config, updates=2, rounds=3)
    assert len(found.seconds) == 3 and found.tokens == 10 and found.peak_bytes is None
    assert found.tokens_per_second == 10 / sorted(found.seconds)[1]
    assert found.step == "not compiled, no CUDA graph (device cpu)" and found.loss > 0
