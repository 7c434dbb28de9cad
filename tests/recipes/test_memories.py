"""Any recipe with the memory of another paper."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from mnemo.errors import MnemoError
from mnemo.memory import XL, AnyMemory, Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.memory.configuration import Layerless
from mnemo.model import Model
from mnemo.recipes.memories import BPTT, KINDS, memory_kind, memory_recipe
from mnemo.recipes.presets import preset
from mnemo.recipes.recipe import EvalConfig

BASE = preset("tiny-bytes")


def test_every_memory_has_a_tiny_preset_and_every_mechanism_a_memory() -> None:
    recipes = {name: preset(f"tiny-bytes-{name}") for name in KINDS}
    assert all(recipe == memory_recipe(BASE, name) for name, recipe in recipes.items())
    used = {type(recipe.model.memory.long) for recipe in recipes.values()}
    assert used == {kind for kind in get_args(AnyMemory) if not issubclass(kind, Layerless)}
    assert any(recipe.model.tokens is not None for recipe in recipes.values())


def test_only_the_memory_differs_between_the_tiny_presets() -> None:
    for name in KINDS:
        recipe = preset(f"tiny-bytes-{name}")
        assert replace(recipe.model, memory=BASE.model.memory, tokens=None) == BASE.model
        assert replace(recipe.train, bptt=0) == BASE.train
        assert recipe.data == BASE.data


@pytest.mark.parametrize("name", KINDS)
def test_a_memory_is_tested_as_it_is_trained(name: str) -> None:
    recipe = memory_recipe(preset("enwik8-base"), name)
    assert recipe.test == recipe.evaluation == EvalConfig(batch=10)


@pytest.mark.parametrize("name", KINDS)
def test_every_tiny_preset_runs(name: str) -> None:
    model = Model(preset(f"tiny-bytes-{name}").model)
    out, state = model(torch.zeros(2, 64, dtype=torch.long), model.init(2))
    out, state = model(torch.zeros(2, 64, dtype=torch.long), state)
    assert out.hidden.isfinite().all()


def test_the_methods_are_those_of_the_papers() -> None:
    def memory(name: str) -> Plan:
        return preset(f"tiny-bytes-{name}").model.memory

    assert memory("none").lengths(4) == (0, 0, 0, 0)
    assert memory("xl").lengths(4) == (64, 64, 64, 64)
    assert memory("long-range").lengths(4) == (21, 21, 21, 384)
    assert isinstance(memory("lamemo").long, Lookahead) and memory("lamemo").lengths(4) == (64,) * 4
    assert memory("compressive").long == Compressive(length=64, compressed=64, ratio=4)
    infinite = memory("infinite").long
    assert isinstance(infinite, Infinite) and (infinite.length, infinite.basis, infinite.sticky) == (64, 64, True)


def test_rmt_has_memory_tokens_only_and_gradient_through_segments() -> None:
    recipe = preset("tiny-bytes-rmt")
    assert recipe.model.tokens == MemoryTokens(num=10)
    assert recipe.model.memory.lengths(4) == (0, 0, 0, 0)
    assert recipe.train.bptt == BPTT > 0


def test_other_memories_have_no_gradient_through_segments() -> None:
    assert memory_recipe(preset("tiny-bytes-rmt"), "xl").train.bptt == 0
    assert memory_recipe(preset("tiny-bytes-rmt"), "mt").train.bptt == 0
    task = preset("rmt-copy-seg24-m24")
    assert memory_recipe(task, "xl").train == task.train, "an update is a whole sample for every memory"


def test_slots_are_those_of_the_recipe_or_of_a_segment() -> None:
    assert memory_recipe(preset("enwik8-base"), "lamemo").model.memory == Plan(long=Lookahead(length=512))
    assert memory_recipe(preset("tiny-bytes-none"), "xl").model.memory == Plan(long=XL(length=64))
    assert memory_recipe(preset("rmt-copy-seg24"), "xl").model.memory == Plan(long=XL(length=24))


def test_memory_tokens_fit_into_a_segment() -> None:
    short = replace(BASE, train=replace(BASE.train, segment=4))
    assert memory_recipe(short, "rmt").model.tokens == MemoryTokens(num=4)


def test_recurrent_layers_become_attention_with_positions() -> None:
    model = memory_recipe(preset("wikitext103-lstm"), "xl").model
    assert model.memory == Plan(long=XL(length=140)) and not model.positions.none


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("transformer-xl", "xl"),
        ("Transformer-XL", "xl"),
        ("lookahead", "lamemo"),
        ("RMT", "rmt"),
        ("memory_tokens", "rmt"),
        ("compressive-transformer", "compressive"),
        ("infinity-former", "infinite"),
        ("plan", "long-range"),
    ],
)
def test_names_of_papers_and_mechanisms_are_accepted(given: str, kind: str) -> None:
    assert memory_kind(given) == kind
    assert memory_recipe(BASE, given) == memory_recipe(BASE, kind)


def test_an_unknown_memory_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MnemoError, match=r"unknown memory 'hippocampus'; known: armt, compressive, infinite, lamemo"):
        memory_recipe(BASE, "hippocampus")


def test_a_memory_that_does_not_fit_the_positions_is_refused() -> None:
    with pytest.raises(MnemoError, match="cannot have the memory 'lamemo': .* needs Relative positions, not Rotary"):
        memory_recipe(preset("small-bytes-rotary"), "lamemo")
