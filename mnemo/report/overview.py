"""A report's main figures in one picture, for a README or a slide."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mnemo.report.charts import WIDTH
from mnemo.report.figure import Figure
from mnemo.report.style import LIGHT
from mnemo.report.svg import NAMESPACE, clean, standalone

KINDS = ("learning-", "sweep-", "positions-")
MOST, COLUMNS = 4, 2
GAP, HEADING = 36.0, 34.0


def overview(figures: Sequence[Figure]) -> str | None:
    """At most four figures, two a row, each below its title; None if there is no such figure."""
    chosen = [figure for figure in figures if figure.slug.startswith(KINDS)][:MOST]
    if not chosen:
        return None
    body, y = [], GAP / 2
    for begin in range(0, len(chosen), COLUMNS):
        row = chosen[begin : begin + COLUMNS]
        body += [_panel(figure, GAP / 2 + column * (WIDTH + GAP), y) for column, figure in enumerate(row)]
        y += HEADING + max(figure.size[1] for figure in row) + GAP / 2
    width = (WIDTH + GAP) * min(COLUMNS, len(chosen))
    titles, words = "; ".join(figure.title for figure in chosen), " ".join(figure.description for figure in chosen)
    named = f"<title>{_text(titles)}</title><desc>{_text(words)}</desc>"
    frame = f'<svg xmlns="{NAMESPACE}" class="chart" viewBox="0 0 {width:.0f} {y:.0f}" role="img">'
    return standalone(f"{frame}{named}{''.join(body)}</svg>")


def _panel(figure: Figure, x: float, y: float) -> str:
    title = f'<text x="{x:.0f}" y="{y + 16:.0f}" fill="{LIGHT["ink"]}" font-size="15" font-weight="650">'
    placed = f'<svg x="{x:.0f}" y="{y + HEADING:.0f}" width="{WIDTH}" height="{figure.size[1]:.0f}" '
    return f"{title}{_text(figure.title)}</text>" + figure.svg.replace("<svg ", placed, 1)


def _text(words: str) -> str:
    return escape(clean(words))
