"""Presets: one recipe for every published configuration, and small ones for a laptop.

A preset is a function that returns a `Recipe`; its docstring gives the source of every number. `NAME@published` is the
same recipe with the quirks of the published code.
"""

from __future__ import annotations

from dataclasses import replace

from mnemo.errors import MnemoError, unknown
from mnemo.recipes import (
    lamemo,
    long_range,
    penn_treebank,
    penn_treebank_fast,
    recurrent_baselines,
    rmt,
    rmt_tasks,
    small,
    speedrun,
    transformer_xl,
    transformer_xl_ablation,
)
from mnemo.recipes.preset_table import Preset
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import tie_lengths

__all__ = [
    "LISTING",
    "PRESETS",
    "Preset",
    "description",
    "documentation",
    "is_preset",
    "listing",
    "preset",
    "published",
]

LISTING = "mnemo info --list"
"""The command that lists all presets."""
PRESETS: dict[str, Preset] = {
    **small.PRESETS,
    **transformer_xl.PRESETS,
    **transformer_xl_ablation.PRESETS,
    **penn_treebank.PRESETS,
    **penn_treebank_fast.PRESETS,
    **long_range.PRESETS,
    **lamemo.PRESETS,
    **rmt.PRESETS,
    **rmt_tasks.PRESETS,
    **recurrent_baselines.PRESETS,
    **speedrun.PRESETS,
}


def preset(name: str) -> Recipe:
    """Return the recipe of a preset, given as `NAME` or `NAME@published`.

    Its evaluations' memory lengths hold for the preset's memory: if you change the memory, they become those of
    training.
    """
    plain, at, suffix = name.partition("@")
    if plain not in PRESETS:
        raise unknown("preset", plain, PRESETS, LISTING)
    if at and suffix != "published":
        raise MnemoError(f"unknown preset '{name}'; the only suffix is '{plain}@published'")
    recipe = PRESETS[plain]()
    return tie_lengths(published(recipe) if at else recipe)


def is_preset(name: str) -> bool:
    """Whether `NAME` or `NAME@published` names a preset."""
    plain, at, suffix = name.partition("@")
    return plain in PRESETS and (not at or suffix == "published")


def published(recipe: Recipe) -> Recipe:
    """Return the recipe with the quirks of the published code."""
    schedule = replace(recipe.train.schedule, published=True)
    stale = recipe.train.bptt > 0 and recipe.train.bptt_window == "sliding"
    train = replace(recipe.train, schedule=schedule, bptt_stale=stale)
    cached = recipe.model.tokens is None and any(recipe.model.memory.lengths(recipe.model.num_layers))
    data = replace(recipe.data, leak=recipe.data.task is not None and cached)
    return replace(recipe, model=recipe.model.published(), data=data, train=train)


def documentation(name: str) -> str:
    """Return the docstring of a preset, which gives the source of its numbers."""
    plain = name.partition("@")[0]
    if plain not in PRESETS:
        raise unknown("preset", plain, PRESETS, LISTING)
    return PRESETS[plain].__doc__ or ""


def description(name: str) -> str:
    """Return the first line of a preset's documentation."""
    return documentation(name).strip().splitlines()[0]


def listing() -> list[tuple[str, str]]:
    """Return name and description of every preset."""
    return [(name, description(name)) for name in PRESETS]
