"""The fast training step against the plain one: compiled, recorded, recomputed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.mechanisms import MECHANISMS
from helpers.monitors import Signaller
from helpers.recorders import Rerun
from helpers.tolerances import assert_close
from helpers.toy_runs import exact, metrics, recipe, run
from torch import Tensor

from mnemo.data.streams import Batch
from mnemo.memory import XL, Compressive, MemoryTokens, Plan
from mnemo.memory.state import leaves
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import Bins, EmbeddingConfig
from mnemo.model.layers import DropoutConfig
from mnemo.model.positions import Relative
from mnemo.recipes.recipe import OptimizerConfig, TrainConfig
from mnemo.training import Unwatched, create_run, train, trainer
from mnemo.training.engine import Engine, compiles_layers
from mnemo.training.optimizers import build_optimizer
from mnemo.training.training_speed import training_speed
from mnemo.training.update_input import UpdateInput, after_update
from mnemo.training.weight_update import fresh_states

TINY: dict[str, Any] = dict(vocab_size=11, num_layers=3, dim=8, num_heads=2, head_dim=4, inner_dim=12)
UNCOMPILED = ("infinite", "lstm")


def tiny(**options: Any) -> Model:
    if isinstance(options.get("memory"), int):
        options["memory"] = Plan(long=XL(length=options["memory"]))
    torch.manual_seed(0)
    return Model(ModelConfig(**{**TINY, **options})).double().train()


@pytest.fixture
def layers_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are compiled by themselves on a CPU too."""
    monkeypatch.setattr("mnemo.training.engine.COMPILED_DEVICES", ("cuda", "cpu"))


def inputs_of_updates(config: TrainConfig, count: int, vocab: int = 11) -> list[UpdateInput]:
    """Random batches; the third one is short, and some rows restart before the fifth."""
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
        result.append(UpdateInput.of(seen, len(past), config))
        past = seen[-again:] if again else []
    return result


def trained(engine: Engine, steps: list[UpdateInput], config: TrainConfig) -> tuple[list[Tensor], Any]:
    """Losses, gradient norms and weights of a run, and the states that it ends with."""
    states, past, found = fresh_states(engine.model, config.batch, config.accumulate), (), []
    for number, inputs in enumerate(steps):
        done = engine.update(inputs, states, lr=2.0**-7 * (1 + number))
        begins = (*past, *({"number": number} for _ in inputs.batches[len(past) :]))
        states, past = after_update(states, done.borders, begins, config)
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
        results.append(trained(engine, inputs_of_updates(config, 6), config))
        if not plain and "recorder" in options:
            assert engine._recorded is not None
    same(results[1], results[0])


QUICK = ("xl", "lookahead", "compressive", "rmt-with-cache", "armt")
BY_LAYERS = ("xl", "rmt-with-cache")
OTHERS = [name for name in MECHANISMS if name not in QUICK and not name.startswith((*UNCOMPILED, "qrnn-kernels"))]


COMPILED = [(name, how) for name in (*QUICK, *OTHERS) for how in (True, "layers")]
WHOLE = ("xl",)
"""Mechanisms that are compiled as a whole, which takes longest, in every run of the tests."""


def is_quick(name: str, how: Any) -> bool:
    return name in (BY_LAYERS if how == "layers" else WHOLE)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(*case, marks=() if is_quick(*case) else pytest.mark.thorough) for case in COMPILED],
)
def test_compiled_training_is_the_plain_training(name: str, how: Any, reference_op: None, layers_on_cpu: None) -> None:
    torch._dynamo.reset()
    notes: list[str] = []
    options = {"num_layers": 2, "dropout": DropoutConfig(), **MECHANISMS[name]}
    compare(options, TrainConfig(batch=2, segment=5, compile=how), backend="eager", note=notes.append)
    assert notes == []


SHARED = Relative(shared_projection=True)
BY_LAYER: dict[str, tuple[dict[str, Any], int]] = {
    "stages": ({"positions": SHARED}, 2),
    "layers": ({}, 2),
    "parts": ({"memory": Plan(long=Compressive(length=7))}, 4),
    "mixed": ({"positions": SHARED, "memory": Plan(long=Compressive(length=7), short=XL(length=7), num_long=2)}, 6),
}
"""Options of a model, and how many functions are compiled for all of its layers and the loss."""


@pytest.mark.parametrize("name", few(BY_LAYER, lambda name: name == "mixed"))
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_one_compiled_layer_serves_all(name: str, reference_op: None, layers_on_cpu: None) -> None:
    options, count = BY_LAYER[name]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compare(
            {"memory": 7, "num_layers": 4, **options},
            TrainConfig(batch=2, segment=5, compile="layers"),
            backend="eager",
            note=pytest.fail,
        )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == count


BPTT_MODEL = {"tokens": MemoryTokens(num=2), "dropout": DropoutConfig.published(0.1)}
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


def test_recording_changes_nothing_that_training_depends_on() -> None:
    model = tiny(memory=4, dropout=DropoutConfig.published(0.2))
    config, optimizer = TrainConfig(batch=2, segment=5, compile=False), build_optimizer(model, OptimizerConfig())
    steps, states = inputs_of_updates(config, 3), fresh_states(model, 2, 1)
    plain = Engine(model, optimizer, config)
    plain.update(steps[0], states, 0.01)
    engine = Engine(model, optimizer, config, recorder=Rerun())

    def everything() -> list[Tensor]:
        moments = [value for values in optimizer.state.values() for value in values.values()]
        return [torch.get_rng_state(), *model.parameters(), *moments, *(leaf for _, leaf in leaves(states))]

    before = [tensor.detach().clone() for tensor in everything()]
    assert engine.needs_preparing(steps[1])
    engine.prepare(steps[1], states)
    assert not engine.needs_preparing(steps[1])
    for found, expected in zip(everything(), before, strict=True):
        assert torch.equal(found, expected)


class Stubborn(torch.optim.Optimizer):
    """An optimizer that cannot be recorded: its rate is a number."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.parameters(), {"lr": 0.1, "factor": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-float(group["lr"]))


def test_a_recorded_update_runs_without_its_graph_too() -> None:
    """A profiler sees only there which operation launches a kernel; the update is the same."""
    config = TrainConfig(batch=2, segment=5, compile=False)
    (inputs,) = inputs_of_updates(config, 1)
    weights = []
    for recorder in (None, Rerun()):
        model = tiny(memory=4)
        engine = Engine(model, build_optimizer(model, OptimizerConfig(lr=2.0**-7)), config, recorder=recorder)
        assert not engine.run_without_graph()
        states = fresh_states(model, 2, 1)
        if recorder is None:
            engine.update(inputs, states, 2.0**-7)
        else:
            engine.prepare(inputs, states)
            assert engine.run_without_graph() and engine.needs_preparing(inputs)
        weights.append([weight.detach() for weight in model.parameters()])
    for plain, recorded in zip(*weights, strict=True):
        assert_close(recorded, plain)


def test_an_optimizer_that_cannot_be_recorded_steps_by_itself() -> None:
    config, notes, results = TrainConfig(batch=2, segment=5, compile=False), [], []
    for recorder in (None, Rerun()):
        model = tiny(memory=4)
        engine = Engine(model, Stubborn(model), config, recorder=recorder, note=notes.append)
        results.append(trained(engine, inputs_of_updates(config, 6), config))
    same(*results)
    assert notes == ["Stubborn steps outside of the CUDA graph"]


class Broken(Rerun):
    def record(self, function: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_what_cannot_be_recorded_goes_on_all_the_same() -> None:
    config, notes, results = TrainConfig(batch=2, segment=5, compile=False), [], []
    for recorder in (None, Broken()):
        model = tiny(memory=4)
        engine = Engine(model, build_optimizer(model, OptimizerConfig()), config, recorder=recorder, note=notes.append)
        results.append(trained(engine, inputs_of_updates(config, 6), config))
    same(*results)
    reason = "operation not permitted when stream is capturing"
    assert notes == [f"continuing without a CUDA graph, slower: {reason}"]
    assert engine.describe() == f"not compiled (compile is off), no CUDA graph ({reason})"


def test_half_weights_that_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config, notes, model = TrainConfig(batch=2, segment=5, compile=False), [], tiny(memory=4)
    engine = Engine(model, build_optimizer(model, OptimizerConfig()), config, recorder=Rerun(), note=notes.append)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine, "_half_weights", full)
    trained(engine, inputs_of_updates(config, 2), config)
    assert notes == ["continuing without a CUDA graph, slower: CUDA out of memory"]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_cannot_be_compiled_goes_on_all_the_same(reference_op: None) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise ValueError("no compiler here")

    notes: list[str] = []
    compare({"memory": 4}, TrainConfig(batch=2, segment=5, compile=True), backend=broken, note=notes.append)
    assert len(notes) == 1 and notes[0].startswith("compiling failed, continuing without it, slower: ")
    assert notes[0].endswith(" raised: ValueError: no compiler here")


REASONS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "compiled, one CUDA graph": ({}, {"compile": True}, {}),
    "not compiled (device cpu), one CUDA graph": ({}, {}, {}),
    "not compiled (compile is off), no CUDA graph (cuda_graph is off)": (
        {},
        {"compile": False, "cuda_graph": False},
        {},
    ),
    "not compiled, no CUDA graph (segments are cut)": ({}, {"compile": True}, {"uneven": "segments are cut"}),
    "not compiled, no CUDA graph (how often an infinite memory fits depends on the data)": (
        MECHANISMS["infinite"],
        {"compile": True},
        {},
    ),
    "not compiled, no CUDA graph (LSTM layers run in fused kernels)": (MECHANISMS["lstm"], {"compile": True}, {}),
    "compiled, no CUDA graph (bptt_memory replay draws dropout again)": (
        {"tokens": MemoryTokens(num=2)},
        {"compile": True, "bptt": 1, "bptt_memory": "replay"},
        {},
    ),
}


@pytest.mark.parametrize("text", REASONS)
def test_the_engine_says_how_it_runs_and_why(text: str) -> None:
    options, settings, more = REASONS[text]
    model = tiny(**options)
    config = TrainConfig(batch=2, segment=5, **settings)
    engine = Engine(model, build_optimizer(model, OptimizerConfig()), config, recorder=Rerun(), **more)
    assert engine.describe() == text


@pytest.mark.parametrize("devices, how", [(("cuda",), "not compiled (device cpu)"), (("cpu",), "layers compiled")])
def test_layers_alone_are_compiled_where_it_pays(devices: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnemo.training.engine.COMPILED_DEVICES", devices)
    model, config = tiny(), TrainConfig(batch=2, segment=5, compile="layers")
    engine = Engine(model, build_optimizer(model, OptimizerConfig()), config, recorder=Rerun())
    assert engine.describe() == f"{how}, one CUDA graph"


@pytest.mark.parametrize(
    ("options", "chosen", "by_layer"),
    [
        ({"memory": 4}, None, True),
        ({"memory": 4}, True, False),
        (MECHANISMS["lookahead"], None, False),
        (MECHANISMS["lookahead"], "layers", True),
        ({"tokens": MemoryTokens(num=2)}, None, False),
    ],
)
def test_by_default_layers_are_compiled_where_they_are_the_whole_step(
    options: dict[str, Any], chosen: Any, by_layer: bool
) -> None:
    assert compiles_layers(tiny(**options), TrainConfig(batch=2, segment=5, compile=chosen)) == by_layer


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.thorough
def test_an_adaptive_softmax_is_compiled_but_for_its_loss(reference_op: None) -> None:
    torch._dynamo.reset()
    notes: list[str] = []
    embedding = EmbeddingConfig(cutoffs=(3, 6), div_val=2)
    config = TrainConfig(batch=9, segment=5, compile=True)  # no bin without a token: Adam would leave it alone
    compare({"embedding": embedding, "memory": 4, "num_layers": 1}, config, backend="aot_eager", note=notes.append)
    assert notes == []


ADAPTIVE = {"embedding": EmbeddingConfig(cutoffs=(3, 6)), "memory": 4, "num_layers": 1}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"accumulate": 2, "z_loss": 0.1},
        pytest.param({"compile": True}, marks=pytest.mark.thorough),
        pytest.param({"compile": "layers"}, marks=pytest.mark.thorough),
    ],
    ids=["plain", "parts", "compiled", "layers"],
)
@pytest.mark.parametrize("div_val", [1, 2])
def test_an_adaptive_softmax_is_recorded_with_bins_of_fixed_sizes(
    how: dict[str, Any], div_val: int, reference_op: None, layers_on_cpu: None
) -> None:
    torch._dynamo.reset()
    notes: list[str] = []
    config = TrainConfig(**{"batch": 12, "segment": 30, "compile": False, **how})
    assert min(Bins((0, 3, 6, 11), (8, 8, 8), False).fixed_sizes(360)) < 360, "a bin does not hold all targets"
    embedding = replace(ADAPTIVE["embedding"], div_val=div_val)
    compare({**ADAPTIVE, "embedding": embedding}, config, recorder=Rerun(), backend="aot_eager", note=notes.append)
    assert notes == []


def test_an_update_with_too_many_rare_tokens_runs_without_the_recording() -> None:
    """Its loss is exact, and a note names the reason once."""
    notes: list[str] = []
    config = TrainConfig(batch=12, segment=30, compile=False)
    steps = inputs_of_updates(config, 4)
    rare = [inputs.map(lambda batch: batch._replace(targets=batch.targets % 5 + 6)) for inputs in steps[1::2]]
    steps[1::2] = rare
    results = []
    for recorder in (None, Rerun()):
        model = tiny(**ADAPTIVE)
        engine = Engine(model, build_optimizer(model, OptimizerConfig()), config, recorder=recorder, note=notes.append)
        results.append(trained(engine, steps, config))
    same(results[1], results[0])
    assert engine.not_recorded is None and len(notes) == 1 and "rare tokens" in notes[0]
    assert not model.softmax.bins_fit(rare[0].batches[0].targets.flatten())


def losses(folder: Path) -> Tensor:
    lines = [json.loads(line) for line in metrics(folder).splitlines()]
    return torch.tensor([line["loss"] for line in lines], dtype=torch.float64)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_and_recorded_runs_have_the_plain_loss_curve(
    reference_op: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    run(tmp_path / "plain", of=recipe(**exact(compile=False, optimizer=OptimizerConfig(lr=2.0**-6))))
    fast = partial(Engine, backend="aot_eager", recorder=Rerun())
    monkeypatch.setattr(trainer, "Engine", fast)
    run(tmp_path / "fast", of=recipe(**exact(compile=True, optimizer=OptimizerConfig(lr=2.0**-6))))
    assert (losses(tmp_path / "fast") - losses(tmp_path / "plain")).abs().max() < 1e-6  # learning rates are fp32


WITH_BINS = {"embedding": EmbeddingConfig(cutoffs=(2, 4))}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="xl", marks=pytest.mark.thorough),
        pytest.param({"model": BPTT_MODEL, "bptt": 1}, id="sliding"),
        pytest.param({"model": WITH_BINS}, id="adaptive softmax"),
    ],
)
def test_a_recorded_run_resumes_bit_for_bit(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "Engine", partial(Engine, recorder=Rerun()))
    wanted = recipe(log_every=1, **options)
    run(tmp_path / "whole", of=wanted)
    create_run(wanted, tmp_path / "stopped")
    for step in (4, 5, 9):
        train(tmp_path / "stopped", monitor=Signaller(signal.SIGTERM, step))
    train(tmp_path / "stopped")
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, {"model": BPTT_MODEL, "bptt": 1}, {"accumulate": 2}, {"model": WITH_BINS}], ids=str
)
def test_a_cuda_graph_trains_like_the_plain_loop(options: dict[str, Any], tmp_path: Path) -> None:
    options = {**options, "model": {**options.get("model", {}), "dropout": DropoutConfig()}}
    for name, changes in {"plain": {"cuda_graph": False}, "graph": {}}.items():
        run(tmp_path / name, of=recipe(device="cuda", compile=False, **changes, **options))
    assert (losses(tmp_path / "graph") - losses(tmp_path / "plain")).abs().max() < 1e-4


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch warns of itself and of TF32 while it compiles
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("how", ["compiled", "layers compiled"])
def test_a_compiled_cuda_graph_resumes_bit_for_bit(how: str, precision: Any, tmp_path: Path) -> None:
    compiled = "layers" if how == "layers compiled" else True
    wanted, lines = recipe(device="cuda", log_every=1, precision=precision, compile=compiled), Lines()
    run(tmp_path / "whole", of=wanted, monitor=lines)
    assert f"step: fused attention, {how}, one CUDA graph" in lines.notes
    assert [line for line in lines.notes if "without it" in line] == []
    create_run(wanted, tmp_path / "stopped")
    for step in (4, 5, 9):
        train(tmp_path / "stopped", monitor=Signaller(signal.SIGTERM, step))
    train(tmp_path / "stopped")
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")


class Lines(Unwatched):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_the_pace_of_a_model_is_measured() -> None:
    config = TrainConfig(batch=2, segment=5, bptt=1, device="cpu")
    found = training_speed(ModelConfig(**TINY, tokens=MemoryTokens(num=2)), config, updates=2, rounds=3)
    assert len(found.seconds) == 3 and found.tokens == 10 and found.peak_bytes is None
    assert found.tokens_per_second == 10 / sorted(found.seconds)[1]
    assert found.step == "not compiled, no CUDA graph (device cpu)" and found.loss > 0
    context = TrainConfig(batch=2, segment=5, context=3, device="cpu")
    assert training_speed(ModelConfig(**TINY), context, updates=1, rounds=1).tokens == 10
