"""A memory plan drawn with characters: one bar for every layer."""

from __future__ import annotations

from mnemo.cost.model_cost import ModelCost

BAR = 40
"""Characters of the longest bar."""


def draw_plan(cost: ModelCost) -> list[tuple[str, str, str, str, int]]:
    """A row for every layer: number, L if it is long range, mechanism, bar, number of slots.

    A bar has # for slots of the memory and = for further ones. Memory tokens have a row before the first layer.
    """
    tokens = [] if cost.tokens is None else [(cost.tokens.read, cost.tokens.read)]
    longest = max(1, *(slots for _, slots in tokens), *(layer.slots for layer in cost.plan))
    first = [("input", "", "MemoryTokens", _bar(*pair, longest), pair[1]) for pair in tokens]
    return first + [
        (f"{plan.layer:>5}", "L" if plan.long else "", plan.memory, _bar(plan.length, plan.slots, longest), plan.slots)
        for plan in cost.plan
    ]


def _bar(length: int, slots: int, longest: int) -> str:
    own = max(min(1, length), round(BAR * length / longest))
    return "#" * own + "=" * (round(BAR * slots / longest) - own)
