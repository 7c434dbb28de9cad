"""What every page shares: the document around it, its header and footer, sections, figures with their files."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from mnemo import __version__
from mnemo.report.cells import written
from mnemo.report.content import Figure
from mnemo.report.markup import Markup, join, table, tag
from mnemo.report.style import CHART_CSS, PAGE_CSS
from mnemo.report.svg import escape

FORMAT_VERSION = 1
MOST_ROWS, MOST_COLUMNS = 60, 20
"""Figures with more numbers than this show them as a file only."""
MOST_PROBLEMS = 20
SECURITY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
LOGO = Markup(
    '<svg viewBox="0 0 60 36" aria-hidden="true"><g fill="none" stroke="var(--accent)" stroke-width="4" '
    'stroke-linecap="round"><path d="M6 30h12M24 30h12M42 30h12"/>'
    '<path d="M12 20q9-16 18 0M30 20q9-16 18 0"/></g></svg>'
)


@dataclass(frozen=True)
class Section:
    slug: str
    title: str
    about: str
    body: Markup
    figures: tuple[Figure, ...] = ()


def _document(title: str, body: Markup) -> str:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY}">'
        f'<meta name="generator" content="mnemo {__version__}"><meta name="format_version" content="{FORMAT_VERSION}">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)} · Mnemo report</title>'
        f"<style>{CHART_CSS}{PAGE_CSS}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def build(
    title: str,
    lead: str,
    sections: Sequence[Section],
    *,
    problems: Sequence[str] = (),
    details: Markup | None = None,
    top: Markup | None = None,
    link: Markup | None = None,
) -> str:
    """A whole page: `details` stand below the lead, `top` before the first section, `link` in the footer."""
    body = tag(
        "div",
        _header(title, lead, details, sections),
        _problems(problems),
        tag("main", top, *(_draw_section(section) for section in sections)),
        _footer(link),
        class_="page",
    )
    return _document(title, body)


def _header(title: str, lead: str, details: Markup | None, sections: Sequence[Section]) -> Markup:
    links = [tag("a", section.title, href=f"#{section.slug}") for section in sections]
    brand = tag("div", LOGO, "Mnemo report", class_="brand")
    nav = tag("nav", *links, aria_label="Sections")
    return tag("header", brand, tag("h1", title), tag("p", lead, class_="lead"), details, nav)


def _problems(problems: Sequence[str]) -> Markup | None:
    if not problems:
        return None
    listed = tag("ul", *(tag("li", problem) for problem in problems[:MOST_PROBLEMS]))
    more = tag("p", f"and {len(problems) - MOST_PROBLEMS} more") if len(problems) > MOST_PROBLEMS else None
    return tag("aside", tag("h2", "Left out of this page"), listed, more, class_="notes")


def _footer(link: Markup | None) -> Markup:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    words = f"Made by mnemo {__version__} with {here}, {made}. This page loads nothing and runs nothing. "
    return tag("footer", words, link)


def _draw_section(section: Section) -> Markup:
    heading = tag("h2", section.title, id=f"{section.slug}-heading")
    about = tag("p", section.about, class_="about") if section.about else None
    return tag("section", heading, about, section.body, id=section.slug, aria_labelledby=f"{section.slug}-heading")


def figure_section(
    slug: str, title: str, about: str, drawn: Iterable[Figure | None], folder: str, css: str = "figures"
) -> Section | None:
    found = tuple(figure for figure in drawn if figure is not None)
    if not found:
        return None
    body = tag("div", *(_draw_figure(figure, folder) for figure in found), class_=css)
    return Section(slug, title, about, body, found)


def _draw_figure(figure: Figure, folder: str) -> Markup:
    caption = tag("figcaption", tag("h3", figure.title), tag("p", figure.caption, class_="caption"))
    files = [tag("a", kind.upper(), href=quote(f"{folder}/{figure.slug}.{kind}")) for kind in ("svg", "csv")]
    links = tag("div", *files, _numbers(figure), class_="links")
    width, height = figure.size
    return tag("figure", caption, Markup(figure.svg), links, class_="card high" if height > width else "card")


def _numbers(figure: Figure) -> Markup | None:
    headers, rows = figure.numbers.headers, figure.numbers.rows
    if len(rows) > MOST_ROWS or len(headers) > MOST_COLUMNS:
        return None
    return tag("details", tag("summary", "Numbers"), tag("div", value_table(headers, rows), class_="scroll tall small"))


def value_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    texts, numeric = written(rows, len(headers))
    return table(headers, [[kept_together(text) for text in row] for row in texts], numeric)


def kept_together(text: str) -> str:
    """No line ends between a number and its deviation."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def facts_list(facts: Iterable[tuple[str, object]], css: str | None = None) -> Markup:
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in facts), class_=css)
