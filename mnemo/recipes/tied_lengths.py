"""Memory lengths of evaluations that hold for one memory only.

Some papers test at a longer memory than they train with, and so do their presets. Such a length is tied to the memory
of the preset: with any other memory (another length, another mechanism, memory tokens) validation and tests use the
memory of training. A length that a user gives is a plain number, which always counts.
"""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import AnyInputMemory, Plan
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import EvalConfig, Recipe


class TiedLength(int):
    """A memory length of an evaluation, and the memory in training that it holds for."""

    plan: Plan
    tokens: AnyInputMemory | None

    def __new__(cls, length: int, plan: Plan, tokens: AnyInputMemory | None) -> TiedLength:
        tied = super().__new__(cls, length)
        tied.plan, tied.tokens = plan, tokens
        return tied

    def __getnewargs__(self) -> tuple[int, Plan, AnyInputMemory | None]:  # type: ignore[override]
        return int(self), self.plan, self.tokens

    def holds_for(self, model: ModelConfig) -> bool:
        return (self.plan, self.tokens) == (model.memory, model.tokens)


def length_for(model: ModelConfig, length: int | None) -> int | None:
    """The memory length to evaluate a model at; None: as in training."""
    if isinstance(length, TiedLength):
        return int(length) if length.holds_for(model) else None
    return length


def tie_lengths(recipe: Recipe) -> Recipe:
    """The recipe with its evaluations' lengths tied to its memory."""

    def tied(config: EvalConfig) -> EvalConfig:
        if config.memory is None:
            return config
        return replace(config, memory=TiedLength(config.memory, recipe.model.memory, recipe.model.tokens))

    return replace(recipe, evaluation=tied(recipe.evaluation), test=tied(recipe.test))


def settle_lengths(recipe: Recipe) -> Recipe:
    """The recipe with plain lengths: those that hold for its memory, and None for the others."""

    def settled(config: EvalConfig) -> EvalConfig:
        return replace(config, memory=length_for(recipe.model, config.memory))

    return replace(recipe, evaluation=settled(recipe.evaluation), test=settled(recipe.test))


def settle_inherited_test(recipe: Recipe, base: Recipe) -> Recipe:
    """The recipe without a test length that it has from the preset `base`, if it has another memory.

    For recipes whose file does not say which lengths the user gave. Lengths of validation stay as they are, so that a
    run that is resumed goes on as it began.
    """
    given, inherited = recipe.test.memory, tie_lengths(base).test.memory
    if given is None or given != inherited:
        return recipe
    return replace(recipe, test=replace(recipe.test, memory=length_for(recipe.model, inherited)))
