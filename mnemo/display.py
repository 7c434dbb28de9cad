"""How objects show themselves: as lines of text in a terminal, as a small table in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

FULL, EMPTY = "█", "░"


class Summary(NamedTuple):
    title: str
    facts: Sequence[tuple[str, str]]
    """Names and values, one a line"""


class Shown(ABC):
    """An object that shows its summary: `repr` as text, and in notebooks as a table."""

    @abstractmethod
    def summary(self) -> Summary:
        """Title and facts of this object."""

    def __repr__(self) -> str:
        title, facts = self.summary()
        width = max((len(name) for name, _ in facts), default=0)
        return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in facts)])

    def _repr_html_(self) -> str:
        title, facts = self.summary()
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th>'
            f'<td style="text-align:left"><pre style="margin:0">{html.escape(value)}</pre></td></tr>'
            for name, value in facts
        )
        return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def bar(share: float, width: int = 10) -> str:
    """A bar of characters that is filled to `share`, from 0 to 1; anything above 0 shows at least one mark."""
    filled = min(width, max(round(width * share), int(share > 0)))
    return FULL * filled + EMPTY * (width - filled)
