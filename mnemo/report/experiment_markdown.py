"""The results of experiments as Markdown, with links to their pages and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from mnemo.report.experiment_page import ANSWERS, FILES, ExperimentPage, outcome, table_files
from mnemo.report.findings import Table
from mnemo.report.svg import clean, slugify
from mnemo.report.table_text import cell_texts

MOST_ROWS = 16
"""Longer tables are links to their CSV files."""


def markdown_overview(pages: Sequence[tuple[ExperimentPage, str]]) -> str:
    """A table of all experiments, then each with its verdicts, tables and pictures.

    `pages`: each with the link to its report.html, relative to the file that the text is written to.
    """
    rows = [
        (
            _link(page.name, f"#{_anchor(page)}"),
            _plain(page.paper),
            _plain(", ".join(page.covers)),
            _plain(page.budget),
            _plain(outcome(page)),
            _plain(dict(page.facts).get("Time", "")),
        )
        for page, _ in pages
    ]
    parts = [_table(("Experiment", "Paper", "Covers", "Budget", "Verdicts", "Time"), rows)]
    return "\n\n".join([*parts, *(part for page, link in pages for part in _experiment(page, link))]) + "\n"


def _anchor(page: ExperimentPage) -> str:
    return f"experiment-{slugify(page.name)}"


def _experiment(page: ExperimentPage, link: str) -> list[str]:
    folder = f"{link.rpartition('/')[0]}/{FILES}" if "/" in link else FILES
    return [
        f'<a id="{_anchor(page)}"></a>\n\n## {_plain(page.title)}',
        f"The claim: {_plain(page.claim)}",
        _about(page, link),
        *_verdicts(page),
        *(part for name, listed in table_files(page).items() for part in _listed(listed, f"{folder}/{name}")),
        *_pictures(page, folder),
        *_bullets("What differs from the paper:", page.notes),
        *_bullets("Left out:", page.problems),
    ]


def _about(page: ExperimentPage, link: str) -> str:
    facts = [("Paper", page.paper), ("Covers", ", ".join(page.covers)), ("Budget", page.budget), *page.facts]
    words = "; ".join(f"{_plain(name)}: {_plain(value)}" for name, value in facts if value)
    return f"{words}. {_link('The page', link)}."


def _verdicts(page: ExperimentPage) -> list[str]:
    rows = [tuple(map(_plain, (v.claim, v.paper, v.ours, ANSWERS[v.holds]))) for v in page.verdicts]
    return [_table(("Claim", "The paper", "Ours", "Holds"), rows)] if rows else [f"{outcome(page).capitalize()}."]


def _listed(listed: Table, link: str) -> list[str]:
    title = f"**{_plain(listed.title)}**"
    if len(listed.rows) > MOST_ROWS:
        return [f"{title}: {_link(f'{len(listed.rows)} rows', link)}"]
    texts, numeric = cell_texts(listed.rows, len(listed.headers))
    caption = f": {_plain(listed.caption)}" if listed.caption else ""
    rows = [tuple(map(_plain, row)) for row in texts]
    return [f"{title}{caption}", _table([_plain(header) for header in listed.headers], rows, numeric)]


def _pictures(page: ExperimentPage, folder: str) -> list[str]:
    """The first figure as a picture, the others as links."""
    shown = [f"!{_link(figure.title, f'{folder}/{figure.slug}.svg')}" for figure in page.figures[:1]]
    links = [_link(figure.title, f"{folder}/{figure.slug}.svg") for figure in page.figures[1:]]
    return shown + ([f"More figures: {', '.join(links)}."] if links else [])


def _bullets(heading: str, lines: Sequence[str]) -> list[str]:
    return [f"{heading}\n\n" + "\n".join(f"- {_plain(line)}" for line in lines)] if lines else []


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], numeric: frozenset[int] = frozenset()) -> str:
    """A table of cells that are already Markdown."""
    rules = ["---:" if at in numeric else "---" for at in range(len(headers))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, rules, *rows))


def _link(words: str, target: str) -> str:
    return f"[{_plain(words)}]({quote(target, safe='/#.')})"


def _plain(words: object) -> str:
    """Text on one line, with Markdown's special characters escaped."""
    line = " ".join(clean(str(words)).split())
    quiet = re.sub(r"([\\`*_\[\]<>|~$#&])", r"\\\1", line)
    return re.sub(r"^(\d*)([-+.)])(?=\s|$)", r"\1\\\2", quiet)
