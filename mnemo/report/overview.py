"""A report's main figures in one picture, for a README or a slide."""

from __future__ import annotations

from collections.abc import Sequence

from mnemo.report.content import Figure
from mnemo.report.svg import WIDTH, element, escape, standalone, text

KINDS = ("learning-", "sweep-", "positions-")
MOST, COLUMNS = 4, 2
GAP, HEADING = 36.0, 34.0


def overview(figures: Sequence[Figure]) -> str | None:
    """At most four figures, two a row, each under its title; None where there is nothing to show."""
    chosen = [figure for figure in figures if figure.slug.startswith(KINDS)][:MOST]
    if not chosen:
        return None
    heights = [figure.size[1] for figure in chosen]
    body, y = [], GAP / 2
    for begin in range(0, len(chosen), COLUMNS):
        for column, figure in enumerate(chosen[begin : begin + COLUMNS]):
            body.append(_panel(figure, GAP / 2 + column * (WIDTH + GAP), y))
        y += HEADING + max(heights[begin : begin + COLUMNS]) + GAP / 2
    width = (WIDTH + GAP) * min(COLUMNS, len(chosen))
    titles = "; ".join(figure.title for figure in chosen)
    described = element("title", escape(titles)) + element("desc", escape(" ".join(f.description for f in chosen)))
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width:.0f} {y:.0f}" role="img">'
    return standalone(f"{frame}{described}{''.join(body)}</svg>")


def _panel(figure: Figure, x: float, y: float) -> str:
    placed = f'<svg x="{x:.0f}" y="{y + HEADING:.0f}" width="{WIDTH}" height="{figure.size[1]:.0f}" '
    return text(x, y + 16, figure.title, "heading") + figure.svg.replace("<svg ", placed, 1)
