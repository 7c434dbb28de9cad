"""Memory lengths of evaluations: a preset's hold for its own memory, a user's always."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, replace

import pytest

from mnemo.config import from_json, to_json
from mnemo.memory import XL, Compressive, Infinite, Lookahead, MemoryTokens, Plan
from mnemo.recipes.presets import PRESETS, preset
from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.recipes.tied_lengths import TiedLength, settle_inherited_test, settle_lengths, tie_lengths

TESTED_LONGER = [name for name in PRESETS if preset(name).test.memory is not None]
VALIDATED_LONGER = [name for name in PRESETS if preset(name).evaluation.memory is not None]


def with_length(recipe: Recipe, length: int) -> Recipe:
    plan = recipe.model.memory
    return replace(recipe, model=replace(recipe.model, memory=replace(plan, long=replace(plan.long, length=length))))


def test_presets_of_every_family_test_at_other_lengths() -> None:
    families = {"tiny-bytes", "tiny-words", "enwik8-base", "lm1b-large", "long-enwik8-4-last", "ptb-fast"}
    assert families <= set(TESTED_LONGER)
    assert {"enwik8-base", "rmt-enwik8-seg512-xl512", "ptb-fast"} <= set(VALIDATED_LONGER)


def test_every_presets_lengths_hold_for_its_own_memory() -> None:
    for name in PRESETS:
        recipe, plain = settle_lengths(preset(name)), PRESETS[name]()
        assert (recipe.test, recipe.evaluation) == (plain.test, plain.evaluation), name
        assert not isinstance(recipe.test.memory, TiedLength), name


@pytest.mark.parametrize("name", TESTED_LONGER)
@pytest.mark.parametrize("length", [0, 7])
def test_an_overridden_length_counts_everywhere(name: str, length: int) -> None:
    recipe = settle_lengths(with_length(preset(name), length))
    assert recipe.test.memory is None and recipe.evaluation.memory is None


@pytest.mark.parametrize(
    "memory",
    [
        Lookahead(length=64),
        Compressive(length=64, compressed=16),
        Infinite(length=64),
    ],
    ids=["lookahead", "compressive", "infinite"],
)
def test_another_mechanism_is_tested_as_it_is_trained(memory: Lookahead | Compressive | Infinite) -> None:
    recipe = preset("tiny-bytes")
    changed = replace(recipe, model=replace(recipe.model, memory=Plan(long=memory)))
    assert settle_lengths(changed).test.memory is None


def test_other_plans_and_memory_tokens_are_tested_as_they_are_trained() -> None:
    recipe = preset("tiny-bytes")
    planned = replace(recipe.model.memory, short=XL(length=8), num_long=1)
    assert settle_lengths(replace(recipe, model=replace(recipe.model, memory=planned))).test.memory is None
    tokens = replace(recipe.model, tokens=MemoryTokens(num=2))
    assert settle_lengths(replace(recipe, model=tokens)).test.memory is None


def test_other_changes_keep_the_presets_lengths() -> None:
    recipe = preset("tiny-bytes")
    deeper = replace(recipe.model, num_layers=6, dim=64)
    assert settle_lengths(replace(recipe, model=deeper)).test.memory == 256


@pytest.mark.parametrize("length", [0, 100, 256])
def test_a_given_length_always_counts(length: int) -> None:
    recipe = with_length(preset("tiny-bytes"), 32)
    given = replace(recipe, test=replace(recipe.test, memory=length), evaluation=EvalConfig(memory=length))
    settled = settle_lengths(given)
    assert settled.test.memory == settled.evaluation.memory == length


def test_a_tied_length_is_a_number_in_files_and_survives_copies() -> None:
    recipe = preset("tiny-bytes")
    assert isinstance(recipe.test.memory, TiedLength)
    data = to_json(recipe)
    assert type(data["test"]["memory"]) is int and json.loads(json.dumps(data)) == data
    assert from_json(Recipe, data) == recipe
    for copied in (copy.deepcopy(recipe).test.memory, asdict(recipe.test)["memory"]):
        assert isinstance(copied, TiedLength) and copied.holds_for(recipe.model)
    assert pickle.loads(pickle.dumps(recipe.test.memory)).holds_for(recipe.model)


def test_a_recipe_in_a_file_of_the_first_release_is_settled_by_its_preset() -> None:
    base = preset("enwik8-base")
    old = from_json(Recipe, to_json(with_length(base, 0)))
    assert old.test.memory == 2100
    settled = settle_inherited_test(old, base)
    assert settled.test.memory is None
    assert settled.evaluation == old.evaluation, "a resumed run validates as it began"
    own = replace(old, test=replace(old.test, memory=300))
    assert settle_inherited_test(own, base) == own
    unchanged = from_json(Recipe, to_json(base))
    assert settle_inherited_test(unchanged, base).test.memory == 2100


def test_the_lengths_of_any_recipe_can_be_tied() -> None:
    recipe = tie_lengths(from_json(Recipe, to_json(preset("tiny-bytes"))))
    assert settle_lengths(recipe).test.memory == 256
    assert settle_lengths(with_length(recipe, 8)).test.memory is None
