"""Plans: which layers keep long memories, as Rae & Razavi arrange them."""

from __future__ import annotations

import pytest

from mnemo.memory import XL, Plan
from mnemo.model import Model, ModelConfig


@pytest.mark.parametrize(
    ("arrangement", "count", "layers"),
    [
        ("interleaved", 4, [6, 12, 18, 24]),
        ("interleaved", 12, list(range(2, 25, 2))),
        ("interleaved", 1, [24]),
        ("interleaved", 5, [5, 10, 15, 20, 24]),
        ("first", 3, [1, 2, 3]),
        ("last", 3, [22, 23, 24]),
        ("middle", 4, [11, 12, 13, 14]),
        ("middle", 3, [11, 12, 13]),
        ("interleaved", 0, []),
        ("interleaved", 24, list(range(1, 25))),
    ],
)
def test_arrangements(arrangement, count, layers):
    plan = Plan(num_long=count, arrangement=arrangement)
    assert [index + 1 for index in plan.long_layers(24)] == layers


@pytest.mark.parametrize("count", [0, 1, 2, 6, 12])
def test_parameter_count_is_the_same_for_every_plan(count):
    def parameters(plan: Plan) -> int:
        model = Model(ModelConfig(num_layers=12, dim=8, num_heads=1, head_dim=4, inner_dim=8, memory=plan))
        return sum(parameter.numel() for parameter in model.parameters())

    assert parameters(Plan(num_long=count, long=XL(length=64), short=XL(length=4))) == parameters(Plan())


def test_lengths_at_evaluation_touch_long_layers_only():
    plan = Plan(long=XL(length=30), short=XL(length=4), num_long=2, arrangement="last")
    assert plan.lengths(4) == (4, 4, 30, 30)
    assert plan.lengths(4, 99) == (4, 4, 99, 99)
    assert plan.lengths(4, [1, 2, 3, 4]) == (1, 2, 3, 4)


def test_impossible_plans_are_refused():
    with pytest.raises(ValueError, match="5 long-range layers, but the model has 3"):
        ModelConfig(num_layers=3, memory=Plan(num_long=5))
    with pytest.raises(ValueError, match="negative"):
        XL(length=-1)
