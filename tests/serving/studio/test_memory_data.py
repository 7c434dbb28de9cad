"""Pictures of a memory as JSON, for memories that the shipped model does not have."""

from __future__ import annotations

import torch
from helpers.models import random_model

from mnemo.inference.generation import read
from mnemo.memory import Compressive, Lookahead, MemoryTokens, Plan
from mnemo.serving.studio.memory_data import attention_json, contents_json

IDS = torch.arange(60) % 23


def test_alpha_of_a_look_ahead_memory() -> None:
    model = random_model(memory=Plan(long=Lookahead(length=6)))
    found = attention_json(model, IDS, segment=5)
    assert found["why_no_alpha"] == "" and found["alpha"]["segments"] > 5
    assert all(len(slots) == 6 and all(0 <= value <= 1 for value in slots) for slots in found["alpha"]["mean"])


def test_a_text_too_short_for_alpha() -> None:
    model = random_model(memory=Plan(long=Lookahead(length=6)))
    assert "too short" in attention_json(model, IDS[:4], segment=5)["why_no_alpha"]


def test_compressed_slots_and_memory_tokens() -> None:
    model = random_model(memory=Plan(long=Compressive(length=4, compressed=3, ratio=2)), tokens=MemoryTokens(num=2))
    state, _ = read(model, IDS, segment=5, state=model.init(1, cached=True))
    found = contents_json(model, state, 5, ["a"] * 8)
    assert found["memory_tokens"] == 2 and not found["exact"]
    assert [part["rows"] for part in found["layers"][0]["ranges"]] == [2, 1]
    assert (found["tokens"], found["first_piece"], found["open"]) == (60, 52, 0)
