"""The tokens that memory slots stand for."""

from __future__ import annotations

import pytest
import torch

from mnemo.analysis import SlotRange, slot_contents
from mnemo.inference.generation import read
from mnemo.memory import LSTM, XL, Compressive, Plan
from mnemo.model import Model, ModelConfig

SEGMENT = 4


def model_with(plan: Plan) -> Model:
    return Model(ModelConfig(vocab_size=11, num_layers=2, dim=8, num_heads=2, head_dim=4, memory=plan)).eval()


def contents(plan: Plan, tokens: int):
    model = model_with(plan)
    state, _ = read(model, torch.arange(tokens) % 11, segment=SEGMENT, state=model.init(1, cached=True))
    return slot_contents(model, state)


def test_nothing_is_in_memory_before_the_first_segment_ends() -> None:
    found = contents(Plan(long=XL(length=6)), 3)
    assert (found.tokens, found.open, found.exact) == (3, 3, True)
    assert [(each.filled, each.slots, each.ranges) for each in found.layers] == [(0, 6, ())] * 2


@pytest.mark.parametrize(("tokens", "begin", "end"), [(4, 0, 4), (7, 0, 4), (9, 2, 8), (12, 6, 12)])
def test_slots_hold_the_last_tokens_of_complete_segments(tokens: int, begin: int, end: int) -> None:
    found = contents(Plan(long=XL(length=6)), tokens)
    assert found.open == tokens - end
    assert found.nbytes == contents(Plan(long=XL(length=6)), 24).nbytes
    assert all(each.ranges == (SlotRange(begin, end, end - begin, 1),) for each in found.layers)


def test_long_and_short_layers() -> None:
    found = contents(Plan(long=XL(length=8), short=XL(length=2), num_long=1, arrangement="last"), 12)
    assert [(each.long, each.ranges[0].begin) for each in found.layers] == [(False, 10), (True, 4)]


def test_compressed_slots_stand_for_several_tokens() -> None:
    found = contents(Plan(long=Compressive(length=4, compressed=2, ratio=3, function="mean")), 12)
    # 8 tokens have left the slots: two blocks of three are compressed, and two tokens wait for a third.
    assert found.layers[0].ranges == (SlotRange(0, 6, 2, 3), SlotRange(8, 12, 4, 1))
    assert (found.layers[0].filled, found.layers[0].slots) == (6, 6)
    assert "compressed" in found.layers[0].besides


def test_a_layer_without_slots() -> None:
    found = contents(Plan(long=LSTM(), short=XL(length=2), num_long=1, arrangement="first"), 8)
    assert [each.ranges for each in found.layers] == [(), (SlotRange(6, 8, 2, 1),)]


def test_the_state_of_a_model_that_has_read_nothing() -> None:
    model = model_with(Plan(long=XL(length=6)))
    found = slot_contents(model, model.init(1, cached=True))
    assert (found.tokens, found.open, found.layers[0].filled, found.layers[0].ranges) == (0, 0, 0, ())
