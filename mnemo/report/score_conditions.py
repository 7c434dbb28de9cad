"""How a score was measured, in words: numbers that differ from the run's own settings of tests, and ways to read, which
are named even if they are the run's own."""

from __future__ import annotations

from mnemo.recipes.recipe import EvalConfig, Recipe
from mnemo.report.files import Record, is_number

KINDS = {
    "no_memory": (True, "no memory"),
    "sliding": (True, "sliding window"),
    "same_length": (True, "same length"),
    "documents": ("reset", "documents reset"),
    "order": ("sentences", "sentences"),
    "starts_from": ("zeros", "starts from zeros"),
    "which": ("last", "last checkpoint"),
    "precision": ("bf16", "bf16"),
}
"""Fields of a result or its score with the value that is always named, and the words for it."""


def in_words(result: Record, score: Record, recipe: Recipe | None) -> str:
    """`result`: the fields beside the score in its file."""
    found = result | score
    kinds = [words for name, (value, words) in KINDS.items() if found.get(name) == value]
    return ", ".join([*kinds, *_numbers(found, recipe)])


def _numbers(found: Record, recipe: Recipe | None) -> list[str]:
    usual = _usual(recipe)
    if found.get("sliding"):  # one row of windows, without context
        usual = {name: value for name, value in usual.items() if name not in ("batch", "context")}
    values = {name: found.get(name) for name in usual}
    changed = {name: value for name, value in values.items() if is_number(value) and value != usual[name]}
    return [f"{name} {value:,}" for name, value in changed.items()]


def _usual(recipe: Recipe | None) -> dict[str, float | None]:
    test = EvalConfig() if recipe is None else recipe.test
    context = recipe.train.context if recipe is not None else 0
    clamp = getattr(recipe.model.positions, "clamp", None) if recipe is not None else None
    return {
        "batch": test.batch,
        "context": context if test.context is None else test.context,
        "clamp": clamp if test.clamp is None else test.clamp,
        "limit": test.limit,
        "temperature": 1.0,
    }
