"""HTML pages from templates: one file that works offline, with nothing in it that runs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mnemo import __version__
from mnemo.report.figure import Figure
from mnemo.report.findings import ANSWERS
from mnemo.report.style import NUM_COLORS, page_css
from mnemo.report.svg import clean
from mnemo.report.table_text import cell_texts

FORMAT_VERSION = 1
MAX_ROWS, MAX_COLUMNS = 60, 20
"""Figures with more numbers than this offer them only as a file."""
MAX_PROBLEMS = 20


@dataclass(frozen=True)
class Section:
    slug: str
    title: str
    about: str
    template: str
    content: Any = None
    """Whatever the template shows."""
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Headline:
    """The first thing on a page."""

    sentence: str
    figure: Figure | None = None
    notes: tuple[str, ...] = ()
    """About the whole page, such as what was cut."""


class Card(NamedTuple):
    """One number in large print."""

    label: str
    value: str
    unit: str
    detail: str


class Link(NamedTuple):
    words: str
    target: str


def build(
    title: str,
    lead: str,
    sections: Sequence[Section],
    *,
    folder: str = "",
    problems: Sequence[str] = (),
    details: Sequence[tuple[str, str]] = (),
    cards: Sequence[Card] = (),
    link: Link | None = None,
    headline: Headline | None = None,
) -> str:
    """A whole page: `details` below the lead, `cards` before the first section, `link` in the footer.

    With a `headline`, the page begins with its sentence and its figure, and the title is in small print.

    `folder`: where the files of its figures and tables are, seen from the page.
    """
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            lead=lead,
            sections=sections,
            folder=folder,
            problems=problems,
            details=details,
            cards=cards,
            link=link,
            headline=headline,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )


def figure_section(slug: str, title: str, about: str, drawn: Iterable[Figure | None], css: str = "") -> Section | None:
    """A section of all figures that are not None, or None if all are."""
    found = tuple(figure for figure in drawn if figure is not None)
    return Section(slug, title, about, "figures.html.j2", css, found) if found else None


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"quote": quote, "unbroken": _unbroken, "cell_texts": cell_texts}
    environment.globals |= {
        "answers": ANSWERS,
        "css": Markup(page_css()),
        "format_version": FORMAT_VERSION,
        "machine": f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
        "max_columns": MAX_COLUMNS,
        "max_problems": MAX_PROBLEMS,
        "max_rows": MAX_ROWS,
        "num_colors": NUM_COLORS,
        "version": __version__,
        "zip": zip,
    }
    return environment


def _printable(value: object) -> object:
    """What an expression of a template shows; escaping follows, except for markup."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else clean(str(value))


def _unbroken(text: str) -> str:
    """The text without line breaks between a number and its deviation."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
