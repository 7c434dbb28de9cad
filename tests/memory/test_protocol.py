"""The protocol of memories: its size, and the answers that mechanisms give about themselves."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from helpers.mechanisms import FEW, MECHANISMS
from helpers.models import random_model, random_tokens

from mnemo.memory import XL, Compressive, KeyValueCache, Lookahead, Plan, protocol
from mnemo.memory.configuration import Memory
from mnemo.memory.protocol import OpenSegment, Stage

UNUSED = {
    "no look-ahead": dict(memory=Plan(long=Lookahead(length=3, alpha="one"))),
    "one look-ahead layer": dict(memory=Plan(long=Lookahead(length=3), short=XL(length=2), num_long=1)),
    "no compression loss": dict(memory=Plan(long=Compressive(length=3, compressed=2, ratio=2, loss="none"))),
}
"""Configurations under which some weights are never used."""
every_mechanism = pytest.mark.parametrize("changes", MECHANISMS.values(), ids=MECHANISMS)


def members(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_protocol_is_as_small_as_its_documentation_says() -> None:
    properties = {name for name in members(Memory) if isinstance(vars(Memory)[name], property)}
    assert properties == {"length", "traits"}
    counts = (len(members(Memory) - properties), len(Stage.__abstractmethods__), len(members(OpenSegment)))
    assert counts == (3, 6, 6)
    documentation = inspect.getdoc(protocol) or ""
    for sentence in ("2 attributes (`length`, `traits`) and 3 methods", "its module: 6 methods", "decoder: 6 methods"):
        assert sentence in documentation


@every_mechanism
def test_a_state_has_the_length_that_it_was_made_with(changes: dict[str, Any]) -> None:
    model = random_model(**changes)
    config = model.config
    for cached in (False, True):
        assert model.init_lengths(model.init(1, cached=cached)) == config.memory.lengths(config.num_layers)
        longer = tuple(length + 3 if length else 0 for length in config.memory.lengths(config.num_layers))
        state = model.init(1, longer, cached=cached)
        assert model.init_lengths(state) == longer
        assert all(a >= b for a, b in zip(model.memory_lengths(state), longer, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=() if name in (*FEW, *UNUSED) else pytest.mark.thorough)
        for name, changes in {**MECHANISMS, **UNUSED}.items()
    ],
)
def test_unused_weights_are_those_without_a_gradient(changes: dict[str, Any]) -> None:
    """In enough segments that every memory is full and compresses or fits."""
    model = random_model(**changes).train()
    state, total = None, torch.zeros(())
    for number in range(6):
        tokens = random_tokens(2, 4, number)
        out, state = model(tokens, state)
        total = total + model.loss(out, tokens).sum() + sum(out.aux.values())
    total.backward()
    for stage in model.stages:
        assert isinstance(stage, Stage)
        idle = {name for name, weight in stage.named_parameters() if weight.grad is None}
        assert idle == set(stage.unused_weights)
    assert any(stage.unused_weights for stage in model.stages) == (changes in UNUSED.values())


@every_mechanism
def test_the_traits_of_a_key_value_cache_hold(changes: dict[str, Any]) -> None:
    model = random_model(**changes)
    memories = model.config.memory.memories(model.config.num_layers)
    caches = [isinstance(part, KeyValueCache) for part in model.layer_states(model.init(1, cached=True))]
    if all(memory.traits.key_value_cache for memory in memories):
        assert all(caches)
    if not any(memory.traits.key_value_cache for memory in memories):
        assert not any(caches)
