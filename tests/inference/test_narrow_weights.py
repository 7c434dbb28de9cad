"""Weights of layers in bf16 and int8: nearly the same results, interchangeable memories, clear errors."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.marks import few
from helpers.mechanisms import FEW, MECHANISMS
from helpers.models import random_model, random_tokens, read
from helpers.tolerances import TOLERANCES, relative_error
from torch import nn

import mnemo
from mnemo import cli
from mnemo.cli.serve import Args
from mnemo.cli.server import load_model
from mnemo.errors import MnemoError
from mnemo.inference import narrow_weights
from mnemo.inference.decoder import Decoder
from mnemo.inference.generation import TextState
from mnemo.inference.narrow_weights import FEW_ROWS, Bf16Linear, Int8Linear, with_narrow_weights
from mnemo.inference.sampling_options import Sampling
from mnemo.inference.weight_formats import WeightFormat
from mnemo.model import Model
from mnemo.model.positions import Rotary
from mnemo.serving.engine import ReadJob, Token, WriteJob
from mnemo.storage.run_header import find_run
from mnemo.storage.shipped import DEFAULT

NARROW: tuple[WeightFormat, ...] = ("bf16", "int8")
CLOSE = TOLERANCES[torch.bfloat16].rtol
"""Relative error of a small network whose activations are rounded to bf16 in every layer"""
pytestmark = pytest.mark.skipif(
    narrow_weights.obstacle("int8", torch.device("cpu")) is not None, reason="this processor has no products in bf16"
)


def trained_like(**changes: Any) -> Model:
    """Weights of a size at which logits, and not rounding, decide about tokens."""
    return random_model(dtype=torch.float32, dim=64, num_heads=4, head_dim=16, inner_dim=128, **changes)


@pytest.mark.parametrize("inputs", [96, 12, 33])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "most"), [(Bf16Linear, 2**-7), (Int8Linear, 2**-6)])
def test_a_linear_layer_is_rounded(
    kind: type[Bf16Linear | Int8Linear], most: float, bias: bool, rows: int, inputs: int
) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(inputs, 40, bias=bias), torch.randn(2, rows, inputs)[:1]
    narrow = kind(linear)
    with torch.no_grad():
        found, expected = narrow(x), linear(x)
        by_weight = torch.nn.functional.linear(x, narrow.weight, linear.bias)
    assert found.dtype == x.dtype and found.shape == expected.shape
    assert 0 < relative_error(found, expected) < most
    assert relative_error(found, by_weight) < 2**-7


def test_int8_weights_are_within_half_a_step_of_their_row() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 32)
    with torch.no_grad():
        linear.weight[3] = 0.0
        linear.weight[5] *= 1000
    narrow = Int8Linear(linear)
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    error = (narrow.weight - linear.weight).abs()
    # The scale is rounded to bf16, which may cut off the largest weight.
    assert bool((error <= step * 0.5 + linear.weight.abs() * 2**-7).all())
    assert not narrow.weight[3].any()


def with_rounded_weights(model: Model, narrow: Model) -> Model:
    """The model in fp32 with the values that the narrow weights stand for."""
    rounded = model.variant()
    values = {
        f"{name}.weight": module.weight
        for name, module in narrow.named_modules()
        if isinstance(module, Bf16Linear | Int8Linear)
    }
    assert values
    weights = {name: values.get(name, weight) for name, weight in model.state_dict().items()}
    rounded.load_state_dict(weights, assign=True)
    return rounded


@pytest.mark.parametrize("weights", NARROW)
@pytest.mark.parametrize("name", few(sorted(MECHANISMS.keys() - {"lstm"}), lambda name: name in FEW))
def test_every_mechanism_computes_with_the_rounded_weights(name: str, weights: WeightFormat) -> None:
    model = random_model(dtype=torch.float32, **MECHANISMS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)  # large weights would amplify the rounding of activations from layer to layer
    narrow, tokens = with_narrow_weights(model, weights), random_tokens(2, 8)
    found, _ = read(narrow, tokens, 4)
    expected, _ = read(with_rounded_weights(model, narrow), tokens, 4)
    assert relative_error(found, expected) < CLOSE


@pytest.mark.parametrize("weights", NARROW)
def test_decoding_equals_the_parallel_segment(weights: WeightFormat) -> None:
    narrow = with_narrow_weights(trained_like(memory=6, positions=Rotary()), weights)
    tokens = random_tokens(2, 9)
    decoder = Decoder(narrow, narrow.init(2, cached=True), segment=4)
    step_by_step = torch.cat([decoder.feed(token).hidden for token in tokens.split(1, 1)], 1)
    together, state = [], narrow.init(2, cached=True)
    with torch.no_grad():
        for part in tokens.split(4, 1):
            out, state = narrow(part, state)
            together.append(out.hidden)
    assert relative_error(step_by_step, torch.cat(together, 1)) < CLOSE


@pytest.mark.thorough
def test_the_shipped_model_writes_the_same_text_and_loses_little() -> None:
    full = mnemo.open_run(DEFAULT, device="cpu")
    prompt = "It was a dark night, and the rain fell upon the roofs of the old town. "
    text, loss = full.generate(prompt, 40, temperature=0.0), full.score(prompt * 8)
    for weights in NARROW:
        run = mnemo.open_run(DEFAULT, device="cpu", weights=weights)
        assert run.generate(prompt, 40, temperature=0.0) == text
        assert abs(run.score(prompt * 8).nats - loss.nats) < 0.01 * loss.nats
        assert sum(p.nbytes for p in run.model.parameters()) < 0.6 * sum(p.nbytes for p in full.model.parameters())


@pytest.mark.thorough
@pytest.mark.parametrize("weights", NARROW)
def test_memories_are_interchangeable(weights: WeightFormat, tmp_path: Path) -> None:
    full, narrow = (mnemo.open_run(DEFAULT, device="cpu", weights=each) for each in ("fp32", weights))
    assert narrow.model.fingerprint() == full.model.fingerprint()
    for writer, reader in ((full, narrow), (narrow, full)):
        session, other = writer.session(temperature=0.0), reader.session(temperature=0.0)
        session.read("Once upon a time there was a king who had three daughters. ")
        session.save(tmp_path / f"{writer.model.made_from}.memory")
        other.load(tmp_path / f"{writer.model.made_from}.memory")
        assert other.generate(10) == session.generate(10)


@pytest.mark.parametrize("weights", few(NARROW, lambda weights: weights == "int8"))
def test_a_server_writes_with_narrow_weights(weights: WeightFormat) -> None:
    args = Args(device="cpu", rows=2, weights=weights)
    served, session = load_model("model", find_run(DEFAULT), args), mnemo.open_run(DEFAULT, device="cpu").session()
    ids = session.opened.tokenizer.encode("It was a dark night, and the rain fell upon the roofs. ")
    with closing(served.engine) as engine:
        state = engine.submit(ReadJob(state=None, ids=[torch.from_numpy(ids.astype("int64"))])).result(60).state
        assert isinstance(state, TextState)
        jobs = [WriteJob(state=state, num_tokens=12, sampling=Sampling(temperature=0.0), seed=0) for _ in range(2)]
        texts = [[event.id for event in engine.submit(job).events() if isinstance(event, Token)] for job in jobs]
    session.sampling = Sampling(temperature=0.0)
    session.read_tokens(torch.from_numpy(ids.astype("int64")))
    assert texts[0] == texts[1] and session.opened.tokenizer.decode(texts[0]) == session.generate(12)


def test_other_weights_are_shared_and_the_model_stays() -> None:
    model = trained_like(memory=4)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    narrow = with_narrow_weights(model, "int8")
    assert narrow.embedding.tables[0].data_ptr() == model.embedding.tables[0].data_ptr()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not narrow.training and with_narrow_weights(model, "fp32") is model


@pytest.mark.parametrize(
    ("machine", "supported", "avx512_bf16", "amx", "has"),
    [
        ("x86_64", True, True, False, True),
        ("x86_64", True, False, True, True),
        ("x86_64", True, False, False, False),  # AVX-512 alone: emulated, and slower than fp32
        ("AMD64", True, False, False, False),
        ("aarch64", True, False, False, True),
        ("aarch64", False, False, False, False),
    ],
)
def test_which_processors_have_products_in_bf16(
    machine: str, supported: bool, avx512_bf16: bool, amx: bool, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_weights.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert narrow_weights.has_bf16_products() == has
    assert (narrow_weights.obstacle("bf16", torch.device("cpu")) is None) == has


def test_wrong_formats_and_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_like(memory=4)
    with pytest.raises(MnemoError, match="format of weights 'int4'"):
        with_narrow_weights(model, "int4")  # type: ignore[arg-type]
    with pytest.raises(MnemoError, match="no layer that attends"):
        with_narrow_weights(random_model(dtype=torch.float32, **MECHANISMS["lstm"]), "int8")
    assert "CPU" in str(narrow_weights.obstacle("int8", torch.device("cuda")))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(MnemoError, match="weights in bf16: this processor"):
        with_narrow_weights(model, "bf16")


def test_the_commands_take_a_format(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for weights in ("fp32", *NARROW):
        asked = ["generate", DEFAULT, "--prompt", "Once upon", "--tokens", "12", "--temperature", "0"]
        assert cli.main([*asked, "--device", "cpu", "--weights", weights]) == 0
        texts.append(capsys.readouterr().out)
    assert len(set(texts)) == 1
    assert cli.main(["generate", DEFAULT, "--weights", "int4"]) == 2
    assert "int4" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("Once upon\n"))
    assert cli.main(["chat", DEFAULT, "--weights", "int8", "--tokens", "5", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip()
