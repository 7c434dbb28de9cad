"""A figure and the numbers that it shows, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    headers: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class Figure:
    slug: str
    """Its id in the page and its file name."""
    title: str
    caption: str
    description: str
    """What somebody who cannot see the picture should know."""
    svg: str
    numbers: Numbers
