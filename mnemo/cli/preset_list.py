"""The presets by paper and purpose, for `mnemo train --list` and `mnemo info --list`."""

from __future__ import annotations

from collections.abc import Sequence

from mnemo.recipes.presets import grouped_listing


def format_presets(words: Sequence[str] = ()) -> str:
    """Names and descriptions of the presets that match all words, in groups."""
    groups = grouped_listing(words)
    width = max(len(name) for rows in groups.values() for name, _ in rows)
    lines = {title: [f"  {name:<{width}}  {about}" for name, about in rows] for title, rows in groups.items()}
    return "\n\n".join("\n".join([title, *rows]) for title, rows in lines.items())
