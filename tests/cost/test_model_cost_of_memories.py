"""What memories cost: counted by formula, and by torch as they run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from helpers.mechanisms import MECHANISMS, few_first
from helpers.models import SMALL, random_model, random_tokens
from torch.utils.flop_counter import FlopCounterMode

from mnemo.cli import main
from mnemo.cost.flops import Flops, flops_per_token, training_step
from mnemo.cost.model_cost import ModelCost, describe
from mnemo.cost.plan_picture import draw_plan
from mnemo.memory import XL, Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.model import Model, ModelConfig
from mnemo.ops.cpu import eager
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import Recipe, TrainConfig

COUNTED_IN_FULL = {name for name in MECHANISMS if name.startswith(("rmt", "mt"))} - {
    "rmt-causal",
    "rmt-qrnn-above-lookahead",
} | {"compressive-most-used"}
"""Their attention computes scores that its mask hides: block masks, and the reference path."""


def count(model: Model, segment: int, batch: int = 1, rounds: int = 1) -> dict[str, float]:
    """What torch counts, by operation, in a segment's forward pass behind a full memory, on average."""
    model.requires_grad_(False)
    state = None
    for seed in range(14 // segment + 1):
        _, state = model(random_tokens(batch, segment, seed), state)
    with FlopCounterMode(display=False) as counter:
        for seed in range(rounds):
            tokens = random_tokens(batch, segment, seed)
            out, state = model(tokens, state)
            model.loss(out, tokens)
    by_operation = counter.get_flop_counts()["Global"]
    return {str(operation): flops / rounds for operation, flops in by_operation.items()}


def formula(model: Model, segment: int, batch: int = 1) -> Flops:
    """Of a whole segment."""
    lengths = model.config.memory.lengths(model.config.num_layers)
    flops = flops_per_token(model, lengths, segment=segment, batch=batch)
    return Flops(*(segment * batch * part for part in flops))


@pytest.fixture
def exact_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that touches no key ahead of a query, so that causal means are what is computed."""
    monkeypatch.setattr(eager, "QUERY_BLOCK", 1)


@pytest.mark.parametrize("segment", [6, *(pytest.param(length, marks=pytest.mark.thorough) for length in (1, 4))])
@pytest.mark.parametrize("name", [case for case in few_first() if case.values[0] not in COUNTED_IN_FULL])
def test_the_formula_is_what_torch_counts(exact_blocks: None, name: str, segment: int) -> None:
    model = random_model(**MECHANISMS[name])
    rounds = 6 if name.startswith("infinite") else 1  # blocks do not fill up in step with segments
    counted = count(model, segment, rounds=rounds)
    assert formula(model, segment).total == pytest.approx(sum(counted.values()), rel=1e-12)


@pytest.mark.parametrize("name", sorted(COUNTED_IN_FULL - {"rmt-lookahead"}))
def test_outside_attention_the_formula_is_what_torch_counts(name: str) -> None:
    model = random_model(**MECHANISMS[name])
    ours, theirs = formula(model, 4), count(model, 4)
    attention = theirs.pop("aten.bmm")
    assert ours.total - ours.attention == pytest.approx(sum(theirs.values()), rel=1e-12)
    assert 0 < ours.attention < attention


def test_a_batch_shares_its_positions(exact_blocks: None) -> None:
    model = random_model(memory=Plan(long=Lookahead(length=6)))
    assert formula(model, 4, batch=3).total == pytest.approx(sum(count(model, 4, batch=3).values()), rel=1e-12)
    assert formula(model, 4, batch=3).projections < 3 * formula(model, 4).projections


def test_block_masks_count_what_rows_see() -> None:
    tokens = MemoryTokens(num=3)
    seen = [
        formula(random_model(tokens=replace(tokens, memory_sees_cache=sees), memory=7), 4).attention
        for sees in (False, True)
    ]
    width = SMALL["num_heads"] * SMALL["head_dim"] * SMALL["num_layers"]
    within = 3 * 3 + 4 * 3 + 4 * 5 / 2 + 3 * 10  # read rows, tokens to read rows, tokens, write rows
    assert seen == [6 * width * (within + 7 * 4), 6 * width * (within + 7 * 10)]


def test_caching_saves_transformer_xl_its_projections_and_others_their_tables() -> None:
    def saved(memory: Plan) -> dict[str, float]:
        model = random_model(memory=memory)
        lengths = memory.lengths(3)
        full = flops_per_token(model, lengths, segment=4)._asdict()
        cached = flops_per_token(model, lengths, segment=4, cached=True)._asdict()
        return {name: full[name] - cached[name] for name in full if full[name] != cached[name]}

    one = 2 * SMALL["dim"] * SMALL["num_heads"] * SMALL["head_dim"] * SMALL["num_layers"]
    table = (5 + 4) * one / 4
    assert saved(Plan(long=XL(length=5))) == pytest.approx({"projections": table, "memory": 2 * 5 * one / 4})
    assert saved(Plan(long=Lookahead(length=5))) == pytest.approx({"projections": table})


def test_look_ahead_grows_linearly_with_the_memory() -> None:
    def memory(length: int) -> float:
        return formula(random_model(memory=Plan(long=Lookahead(length=length))), 4).memory

    assert memory(400) - memory(300) == memory(300) - memory(200) == memory(200) - memory(100)


PUBLISHED = {
    "lamemo-wikitext103-transformer": (151, 148),
    "lamemo-wikitext103-transformer-xl": (151, 157),
    "lamemo-wikitext103-compressive": (161, 169),
    "lamemo-wikitext103-infinite": (160, 235),
    "lamemo-wikitext103": (151, 191),
}
"""LaMemo's Table 1: millions of parameters, and of multiply-adds a token, which it calls FLOPS."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_table_1_of_lamemo(name: str) -> None:
    info = describe(name, preset(name))
    parameters, adds = PUBLISHED[name]
    assert info.parameters.total / 1e6 == pytest.approx(parameters, rel=0.006)
    if name.endswith("infinite"):  # the number of samples is not published
        assert info.training.multiply_adds / 1e6 == pytest.approx(187.5, abs=0.05)
    else:
        assert info.training.multiply_adds / 1e6 == pytest.approx(adds, rel=0.011)


def test_the_samples_that_would_explain_table_1() -> None:
    recipe = preset("lamemo-wikitext103-infinite")
    memory = recipe.model.memory.long
    assert isinstance(memory, Infinite)
    many = replace(recipe, model=replace(recipe.model, memory=Plan(long=replace(memory, samples=4132))))
    assert describe("many", many).training.multiply_adds / 1e6 == pytest.approx(235, abs=0.05)


def test_a_training_step_reads_windows_again() -> None:
    forward = Flops(projections=1.0, attention=2.0, feed_forward=3.0, memory=4.0, softmax=10.0)
    assert training_step(forward, TrainConfig()) == 60
    assert training_step(forward, TrainConfig(bptt=2)) == 60 + 2 * 30
    assert training_step(forward, TrainConfig(bptt=2, bptt_loss="all")) == 3 * 60
    assert training_step(forward, TrainConfig(bptt=2, bptt_window="tumbling")) == 60
    assert training_step(forward, TrainConfig(bptt=2, bptt_memory="replay")) == 4 * (20 + 2 * 10)


def test_a_training_step_encodes_the_context_again() -> None:
    forward = Flops(projections=1.0, attention=2.0, feed_forward=3.0, memory=4.0, softmax=10.0)
    config = TrainConfig(segment=8, context=24)
    assert training_step(forward, config) == 3 * (4 * 10 + 10)
    assert training_step(forward, replace(config, recompute="layer")) == 3 * (4 * 10 + 10) + 4 * 10


def small_info(tokens: MemoryTokens | None = None, **plan: Any) -> ModelCost:
    return describe("small", Recipe(model=ModelConfig(**SMALL, memory=Plan(**plan), tokens=tokens)))


def test_compressed_slots_are_drawn_and_counted() -> None:
    info = small_info(long=Compressive(length=20, compressed=20, ratio=4), short=XL(length=10), num_long=1)
    rows = draw_plan(info)
    assert [row[4] for row in rows] == [10, 10, 40]
    assert [row[3] for row in rows] == ["#" * 10, "#" * 10, "#" * 20 + "=" * 20]
    xl, compressive = info.memories
    assert (xl.layers, xl.tensors, xl.state_bytes) == ((1, 2), {"hidden": (10, 12)}, 2 * 10 * 12 * 4)
    assert compressive.tensors == {"hidden": (20, 12), "compressed": (20, 12), "waiting": (3, 12)}
    assert compressive.settings["ratio"] == 4 and "length" not in compressive.settings
    assert sum(kind.state_bytes for kind in info.memories) == sum(info.state_bytes) == info.to_json()["state_bytes"]


def test_memory_tokens_are_drawn_and_counted() -> None:
    info = small_info(tokens=MemoryTokens(num=5), long=XL(length=10))
    first, *layers = draw_plan(info)
    assert first == ("input", "", "MemoryTokens", "#" * 20, 5) and len(layers) == 3
    assert info.tokens is not None and info.tokens.state_bytes == 5 * 12 * 4
    assert info.to_json()["state_bytes"] == 5 * 12 * 4 + 3 * 10 * 12 * 4
    assert info.to_json()["memory_tokens"] == {"read": 5, "written": 5, "state_bytes": 240}
    read_only = small_info(tokens=MemoryTokens(num=5, write=False), long=XL(length=10)).tokens
    assert read_only is not None and (read_only.written, read_only.state_bytes) == (0, 0)


def test_a_group_keeps_its_memory_together() -> None:
    (kind,) = small_info(long=Lookahead(length=10)).memories
    assert kind.together and kind.layers == (1, 2, 3)
    assert kind.tensors == {"inputs": (10, 12), "contexts": (2, 10, 2, 6), "lse": (2, 10, 2)}
    (kind,) = small_info(long=Infinite(length=10, basis=8, block=4, gate="shared")).memories
    assert kind.settings["basis"] == 8 and kind.tensors["coefficients"] == (3, 8, 12)


def test_the_command_shows_both_conventions_and_every_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "lamemo-wikitext103-compressive"]) == 0
    printed = capsys.readouterr().out
    assert "169.08 M and 168.96 M multiply-adds" in printed
    assert "compressed 150 x 410" in printed and "ratio 4" in printed
    assert main(["info", "lamemo-wikitext103-infinite"]) == 0
    assert "basis 150" in capsys.readouterr().out
    assert main(["info", "rmt-wikitext103-seg150-m10-bptt2"]) == 0
    printed = capsys.readouterr().out
    assert "memory tokens: 10 read, 10 written by every segment; 16.02 KiB carried on" in printed
    assert "7.31 times the forward pass" in printed
    assert main(["info", "rmt-wikitext103-seg150-m10-bptt2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["forward_flops_per_token"]["training"]
    assert answer["multiply_adds"] * 2 == answer["total"]


def test_every_mechanism_says_what_it_costs_without_weights() -> None:
    for name, changes in MECHANISMS.items():
        memory = changes["memory"]
        plan = Plan(long=XL(length=memory)) if isinstance(memory, int) else memory
        model = ModelConfig(**{**SMALL, **changes, "memory": plan})
        info = describe(name, Recipe(model=model, train=TrainConfig(segment=4)))
        json.dumps(info.to_json())
        assert info.training.total > info.training.softmax > 0
        assert info.inference.total <= info.training.total
