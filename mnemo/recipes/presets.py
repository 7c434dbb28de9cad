"""Presets: one recipe for every published configuration, and small ones for a laptop.

A preset is a function that returns a `Recipe`; its docstring gives the source of every number. `NAME@published` is the
same recipe with the quirks of the published code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from mnemo.recipes.memories import memory_kind, names_of
from mnemo.recipes.preset_table import Preset
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import tie_lengths

__all__ = [
    "GROUPS",
    "LISTING",
    "PRESETS",
    "Preset",
    "description",
    "documentation",
    "full_name",
    "grouped_listing",
    "is_preset",
    "preset",
    "published",
]

LISTING = "mnemo info --list"
"""The command that lists all presets."""
GROUPS: dict[str, dict[str, Preset]] = {
    "Small models for a laptop": small.PRESETS,
    "The memory of each paper in one small model": small.TINY_MEMORIES,
    "Transformer-XL (Dai et al., 2019)": transformer_xl.PRESETS,
    "Transformer-XL: ablation on WikiText-103": transformer_xl_ablation.PRESETS,
    "Transformer-XL: Penn Treebank": {**penn_treebank.PRESETS, **penn_treebank_fast.PRESETS},
    "Long-range memory in a few layers (Rae & Razavi, 2020)": long_range.PRESETS,
    "LaMemo and its baselines (Ji et al., 2022)": lamemo.PRESETS,
    "RMT and its baselines (Bulatov et al., 2022): language": rmt.PRESETS,
    "RMT and its baselines (Bulatov et al., 2022): algorithmic tasks": rmt_tasks.PRESETS,
    "Recurrent networks as baselines": recurrent_baselines.PRESETS,
    "The best model in a few minutes of one GPU": speedrun.PRESETS,
}
"""All presets, by paper or purpose."""
PRESETS: dict[str, Preset] = {name: function for group in GROUPS.values() for name, function in group.items()}


def preset(name: str) -> Recipe:
    """Return the recipe of a preset, given as `NAME` or `NAME@published`; for the name of a memory, its small preset.

    Some presets evaluate with a longer memory than they train with. If you change the memory, evaluations use the
    memory length of training.
    """
    plain, at, suffix = full_name(name).partition("@")
    if at and suffix != "published":
        raise MnemoError(f"unknown preset '{name}'; the only suffix is '{plain}@published'")
    recipe = PRESETS[plain]()
    return tie_lengths(published(recipe) if at else recipe)


def full_name(name: str) -> str:
    """The name of a preset; that of a memory or its paper stands for a small preset: `rmt` for `tiny-bytes-rmt`."""
    plain, at, suffix = name.partition("@")
    kind = memory_kind(plain)
    if plain not in PRESETS and kind is not None:
        plain = f"tiny-bytes-{kind}"
    if plain not in PRESETS:
        raise unknown("preset", plain, PRESETS, LISTING)
    return f"{plain}{at}{suffix}"


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
    return PRESETS[full_name(name).partition("@")[0]].__doc__ or ""


def description(name: str) -> str:
    """Return the first line of a preset's documentation."""
    return documentation(name).strip().splitlines()[0]


def grouped_listing(words: Sequence[str] = ()) -> dict[str, list[tuple[str, str]]]:
    """Return name and description of the presets that match all words, by paper or purpose.

    A word matches the beginning of a word in the name, the description or the title of the group. Names of a memory
    match its other names as well.
    """
    found = {
        title: [(name, description(name)) for name in group if _matches(f"{name} {description(name)} {title}", words)]
        for title, group in GROUPS.items()
    }
    if not any(found.values()):
        raise MnemoError(f"no preset matches '{' '.join(words)}'; {LISTING} shows all")
    return {title: rows for title, rows in found.items() if rows}


def _matches(text: str, words: Sequence[str]) -> bool:
    def begins(word: str) -> bool:
        return re.search(rf"(?<![a-z0-9]){re.escape(word)}", text.lower()) is not None

    return all(any(map(begins, names_of(word))) for word in words)


def format_presets(words: Sequence[str] = ()) -> str:
    """Names and descriptions of the presets that match all words, in groups."""
    groups = grouped_listing(words)
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    lines = {title: [f"  {name:<{width}}  {about}" for name, about in rows] for title, rows in groups.items()}
    return "\n\n".join("\n".join([title, *rows]) for title, rows in lines.items())
