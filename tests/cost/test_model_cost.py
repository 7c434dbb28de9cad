from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mnemo.cli import main
from mnemo.config import to_json
from mnemo.cost.flops import flops_per_token
from mnemo.cost.model_cost import attention_path, describe
from mnemo.cost.parameters import count_parameters
from mnemo.cost.plan_picture import draw_plan
from mnemo.cost.state_size import state_bytes
from mnemo.errors import MnemoError
from mnemo.memory import XL, MemoryTokens, Plan
from mnemo.model import Model, ModelConfig
from mnemo.model.embedding import Bins, EmbeddingConfig
from mnemo.model.positions import AnyPositions, Learned, Relative, Rotary, Shaw
from mnemo.ops.cpu import eager
from mnemo.recipes.presets import preset
from mnemo.storage.run_header import find_recipe

BATCH, SEGMENT = 3, 5


def small_model(positions: AnyPositions = Relative(), slots: int = 7, **changes: Any) -> Model:
    plan = Plan(long=XL(length=slots), short=XL(length=slots // 2), num_long=1)
    sizes: dict[str, Any] = dict(num_layers=3, dim=16, num_heads=2, head_dim=6, inner_dim=20, vocab_size=11)
    return Model(ModelConfig(**(sizes | {"positions": positions, "memory": plan} | changes)))


def counted_flops(model: Model, cached: bool, patch: pytest.MonkeyPatch) -> float:
    """What PyTorch counts per token, when every query attends by itself to the keys that it sees."""
    patch.setattr(eager, "QUERY_BLOCK", 1)
    state = model.zeros(BATCH, cached=cached)
    tables = model.tables(SEGMENT, state) if cached else None
    tokens = torch.randint(11, (BATCH, SEGMENT))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        out, _ = model(tokens, state, tables=tables)
        model.loss(out, tokens)
    return counter.get_total_flops() / tokens.numel()


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        lambda: small_model(),
        lambda: small_model(Relative(shared_projection=True)),
        lambda: small_model(Shaw(distances=20)),
        lambda: small_model(Rotary()),
        lambda: small_model(Learned(length=9), slots=0),
        lambda: small_model(slots=14, same_length=True),
    ],
    ids=["relative", "shared", "shaw", "rotary", "no memory", "same length"],
)
def test_the_formula_counts_what_pytorch_counts(model, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    built = model().eval().requires_grad_(False)
    lengths = built.config.memory.lengths(3)
    flops = flops_per_token(built, lengths, segment=SEGMENT, batch=BATCH, cached=cached)
    assert flops.total == pytest.approx(counted_flops(built, cached, monkeypatch), rel=1e-12)


def test_a_factorised_softmax_projects_first() -> None:
    model = small_model(embedding=EmbeddingConfig(dim=8))
    flops = flops_per_token(model, model.config.memory.lengths(3), segment=SEGMENT)
    assert flops.softmax == 2 * 16 * 8 + 2 * 8 * 11


def test_an_adaptive_softmax_costs_its_first_bin_and_a_share_of_the_others() -> None:
    plain = small_model(vocab_size=1000)
    adaptive = small_model(vocab_size=1000, embedding=EmbeddingConfig(cutoffs=(100, 400), div_val=2))
    lengths = plain.config.memory.lengths(3)
    of = [flops_per_token(model, lengths, segment=SEGMENT).softmax for model in (plain, adaptive)]
    head = 2 * 16 * 16 + 2 * 16 * (100 + 2)
    assert of[0] == 2 * 16 * 1000
    assert head < of[1] < of[0]
    assert sum(Bins((0, 100, 400, 1000), (16, 16, 16), True).zipf_shares()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "memory", "mebibytes"), [("wikitext103-large", 1600, 112.5), ("enwik8-large", 3800, 356.25)]
)
def test_the_papers_states_come_out(name: str, memory: int, mebibytes: float) -> None:
    """'112MB' for 18 layers of 1600 vectors of 1024, '356MB' for 24 of 3800 (Rae & Razavi)."""
    info = describe(name, preset(name), memory=memory)
    assert sum(info.state_bytes) == mebibytes * 2**20
    assert sum(info.cached_bytes) == 2 * mebibytes * 2**20
    assert len(set(info.state_bytes)) == 1


def test_state_bytes_are_those_of_a_state() -> None:
    model = small_model()
    lengths = model.config.memory.lengths(3)
    assert lengths == (3, 3, 7)
    assert state_bytes(model, lengths) == (3 * 16 * 4, 3 * 16 * 4, 7 * 16 * 4)
    assert state_bytes(model, lengths, cached=True) == (3 * 24 * 4, 3 * 24 * 4, 7 * 24 * 4)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("enwik8-base", 40_949_760), ("wikitext103-base", 41_066_400), ("lm1b-large", 700_274_688)],
)
def test_layers_are_counted_like_the_published_scripts_do(name: str, layers: int) -> None:
    with torch.device("meta"):
        model = Model(preset(name).model)
    counts = count_parameters(model)
    assert counts.layers == layers
    assert counts.total == sum(parameter.numel() for parameter in model.parameters())


def test_the_plan_shows_long_layers_and_lengths() -> None:
    rows = draw_plan(describe("x", preset("long-enwik8-4-interleaved")))
    assert [int(row[0]) for row in rows if row[1] == "L"] == [6, 12, 18, 24]
    assert {(row[4], len(row[3])) for row in rows} == {(2304, 40), (128, 2)}


def test_no_memory_draws_no_bar() -> None:
    assert {(row[3], row[4]) for row in draw_plan(describe("x", preset("ptb")))} == {("", 0)}


def test_info_prints_numbers_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "wikitext103-large", "--memory", "1600", "--batch", "1"]) == 0
    text = capsys.readouterr().out
    assert "285,170,506" in text and "112.5 MiB" in text and "attention: " in text
    assert main(["info", "wikitext103-large", "--memory", "1600", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["parameters"]["total"] == 285_170_506
    assert data["state_bytes"] == 18 * 1600 * 1024 * 4
    assert [layer["length"] for layer in data["layers"]] == [1600] * 18


def test_info_says_which_attention_is_taken_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = preset("enwik8-base")
    half = replace(recipe.train, precision="bf16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "plain PyTorch" in attention_path(recipe.model, half) and "CUDA" in attention_path(recipe.model, half)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def refused(device: object, dtype: torch.dtype, size: int, spans: bool = True) -> str | None:
        return None if size == 64 else f"{dtype} {size}"

    monkeypatch.setattr("mnemo.model.model.kernel_obstacle", refused)
    monkeypatch.setattr("mnemo.model.model.heads_obstacle", refused)
    heads = replace(recipe.model, head_dim=64)
    assert attention_path(heads, half) == "fused kernels (bf16)"
    assert "torch.bfloat16 200" in attention_path(replace(heads, head_dim=200), half)
    wrapped = replace(heads, tokens=MemoryTokens(num=2, ahead="wrap"))
    assert "'wrap' have no kernel" in attention_path(wrapped, half)


def test_info_lists_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--list"]) == 0
    assert "enwik8-base " in capsys.readouterr().out
    assert main(["info"]) == 2


def test_info_reads_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = preset("tiny-bytes")
    recipe = replace(recipe, model=replace(recipe.model, num_layers=2))
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    header = {"format_version": 1, "mnemo_version": "0.1.0", "recipe": to_json(recipe), "corpus": {}}
    (folder / "recipe.json").write_text(json.dumps(header))
    monkeypatch.chdir(tmp_path)
    assert find_recipe("mine") == find_recipe("runs/mine") == recipe
    assert main(["info", "mine", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) == 2
    (folder / "recipe.json").write_text("{")
    assert main(["info", "mine"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_wrong_name_or_number_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MnemoError, match="did you mean 'tiny-bytes'"):
        find_recipe("tiny-bites")
    for wrong in ({"segment": 0}, {"batch": 0}, {"memory": -1}):
        with pytest.raises(MnemoError):
            describe("x", preset("tiny-bytes"), **wrong)


def test_what_computing_again_costs_and_saves(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = preset("enwik8-base")
    plain = describe("base", recipe)
    layers = describe("base", replace(recipe, train=replace(recipe.train, recompute="layer")))
    kept = plain.activations
    assert layers.training_step == pytest.approx(kept.layers_work * plain.training_step)
    assert 1.3 < kept.layers_work < 4 / 3 and kept.layers < kept.all / 7
    assert kept.segments == kept.all  # no window, nothing to save
    assert main(["info", "enwik8-base"]) == 0
    assert "layers (--train.recompute layer):" in capsys.readouterr().out
    window = replace(recipe.train, bptt=3)
    several = describe("base", replace(recipe, train=window)).activations
    assert several.all == 4 * kept.all and several.segments == kept.all
    assert several.segments_work == pytest.approx(4 / 3)
