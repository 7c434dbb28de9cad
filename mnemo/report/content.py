"""A figure and the numbers that it shows, as plain data."""

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
    """What somebody who cannot see the picture should know."""
    svg: str
    numbers: Numbers

    @property
    def size(self) -> tuple[float, float]:
        """Width and height that the picture is drawn in."""
        found = re.search(r'viewBox="0 0 (\d+) (\d+)"', self.svg)
        assert found is not None
        return float(found[1]), float(found[2])
