"""A figure: its picture, the words around it, and the numbers that it shows."""

from __future__ import annotations

import re
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
    """Text alternative: the main numbers of the picture in words."""
    svg: str
    numbers: Numbers

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the picture in its own units."""
        found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', self.svg)
        assert found is not None
        return float(found[1]), float(found[2])
