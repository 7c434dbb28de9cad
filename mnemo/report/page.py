"""The HTML page: one file that works offline, with nothing in it that could run."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from mnemo import __version__
from mnemo.report import figures, summary
from mnemo.report.figures import Figure, Group
from mnemo.report.markup import Markup, dot, join, table, tag
from mnemo.report.overview import overview
from mnemo.report.results import Sample
from mnemo.report.runs import Run
from mnemo.report.scales import amount, duration
from mnemo.report.style import CHART_CSS, PAGE_CSS
from mnemo.report.svg import escape

FORMAT_VERSION = 1
PICTURE = "overview.svg"
MOST_ROWS = 60
"""Figures with more numbers than this show them as a file only."""
SECURITY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
LOGO = Markup(
    '<svg viewBox="0 0 60 36" aria-hidden="true"><g fill="none" stroke="var(--accent)" stroke-width="4" '
    'stroke-linecap="round"><path d="M6 30h12M24 30h12M42 30h12"/>'
    '<path d="M12 20q9-16 18 0M30 20q9-16 18 0"/></g></svg>'
)


@dataclass(frozen=True)
class Page:
    html: str
    figures: tuple[Figure, ...]
    picture: str | None
    """The main figures in one"""


@dataclass(frozen=True)
class Section:
    slug: str
    title: str
    about: str
    body: Markup
    figures: tuple[Figure, ...] = ()


def build_page(
    runs: Sequence[Run], notes: Sequence[str], *, folder: str, title: str | None = None, lead: str | None = None
) -> Page:
    """`folder`: where the figures' own files are, seen from the page."""
    groups = figures.grouped(runs)
    sections = [section for section in _sections(runs, groups, folder) if section is not None]
    title = title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side")
    lead = lead or _lead(runs, groups)
    drawn = tuple(figure for section in sections for figure in section.figures)
    picture = overview(drawn)
    notes = [*notes, *(f"{run.name}: {note}" for run in runs for note in run.notes)]
    body = tag(
        "div",
        _header(title, lead, sections),
        _notes(notes),
        tag("main", summary.cards(groups), *(_draw_section(section) for section in sections)),
        _footer(f"{folder}/{PICTURE}" if picture else None),
        class_="page",
    )
    return Page(_document(title, body), drawn, picture)


def _document(title: str, body: Markup) -> str:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY}">'
        f'<meta name="generator" content="mnemo {__version__}"><meta name="format_version" content="{FORMAT_VERSION}">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)} · Mnemo report</title>'
        f"<style>{CHART_CSS}{PAGE_CSS}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    corpora = ", ".join(dict.fromkeys(group.corpus for group in groups))
    trained = amount(sum(run.tokens or 0 for run in runs))
    return f"Trained on {trained} tokens of {corpora}." if trained != "0" else f"Corpus: {corpora}."


def _header(title: str, lead: str, sections: Sequence[Section]) -> Markup:
    links = [tag("a", section.title, href=f"#{section.slug}") for section in sections]
    brand = tag("div", LOGO, "Mnemo report", class_="brand")
    return tag(
        "header", brand, tag("h1", title), tag("p", lead, class_="lead"), tag("nav", *links, aria_label="Sections")
    )


def _notes(notes: Sequence[str]) -> Markup:
    if not notes:
        return Markup("")
    listed = tag("ul", *(tag("li", note) for note in notes[:20]))
    more = tag("p", f"and {len(notes) - 20} more") if len(notes) > 20 else None
    return tag("aside", tag("h2", "Left out of this page"), listed, more, class_="notes")


def _footer(picture: str | None) -> Markup:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    words = f"Made by mnemo {__version__} with {here}, {made}. This page loads nothing and runs nothing. "
    return tag("footer", words, tag("a", "Its main figures in one picture", href=quote(picture)) if picture else None)


def _draw_section(section: Section) -> Markup:
    heading = tag("h2", section.title, id=f"{section.slug}-heading")
    about = tag("p", section.about, class_="about") if section.about else None
    return tag("section", heading, about, section.body, id=section.slug, aria_labelledby=f"{section.slug}-heading")


def _sections(runs: Sequence[Run], groups: Sequence[Group], folder: str) -> list[Section | None]:
    return [
        Section("runs", "Runs", "", summary.run_table(runs)),
        _learning(runs, groups, folder),
        _memory(groups, folder),
        _plans(runs, folder),
        _samples(runs),
        _configurations(runs, groups),
    ]


def _figure_section(
    slug: str, title: str, about: str, drawn: Iterable[Figure | None], folder: str, css: str = "figures"
) -> Section | None:
    found = tuple(figure for figure in drawn if figure is not None)
    if not found:
        return None
    body = tag("div", *(_draw_figure(figure, folder) for figure in found), class_=css)
    return Section(slug, title, about, body, found)


def _learning(runs: Sequence[Run], groups: Sequence[Group], folder: str) -> Section | None:
    about = "How the loss falls while a model trains, and where it ends. Lower is better."
    drawn = [draw(group) for group in groups for draw in (figures.learning_curves, figures.final_values)]
    return _figure_section("learning", "Learning", about, [*drawn, figures.speeds(runs)], folder)


def _memory(groups: Sequence[Group], folder: str) -> Section | None:
    about = "What the model gains from the text before the segment that it is reading."
    drawn = [draw(group) for group in groups for draw in (figures.memory_sweep, figures.loss_by_position)]
    return _figure_section("memory", "Memory", about, drawn, folder)


def _plans(runs: Sequence[Run], folder: str) -> Section | None:
    about = (
        "Which layer keeps how much of the past: the memory in colour, pale where it is short range, the segment grey."
    )
    return _figure_section(
        "plans", "Memory plans", about, map(figures.memory_plan, runs), folder, "figures small-figures"
    )


def _draw_figure(figure: Figure, folder: str) -> Markup:
    caption = tag("figcaption", tag("h3", figure.title), tag("p", figure.caption, class_="caption"))
    files = [tag("a", kind.upper(), href=quote(f"{folder}/{figure.slug}.{kind}")) for kind in ("svg", "csv")]
    links = tag("div", *files, _numbers(figure), class_="links")
    return tag("figure", caption, Markup(figure.svg), links, class_="card")


def _numbers(figure: Figure) -> Markup | None:
    headers, rows = figure.numbers.headers, figure.numbers.rows
    if len(rows) > MOST_ROWS:
        return None
    shown = [[f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row] for row in rows]
    numeric = frozenset(i for i in range(len(headers)) if all(isinstance(row[i], (int, float)) for row in rows))
    return tag(
        "details", tag("summary", "Numbers"), tag("div", table(headers, shown, numeric), class_="scroll tall small")
    )


def _samples(runs: Sequence[Run]) -> Section | None:
    drawn = [_draw_sample(run, sample) for run in runs for sample in run.results.samples]
    if not drawn:
        return None
    return Section("samples", "Samples", "Text that the models wrote; the prompt is grey.", join(drawn))


def _draw_sample(run: Run, sample: Sample) -> Markup:
    heading = tag("h3", dot(run.color), run.name)
    texts = [tag("pre", tag("mark", sample.prompt) if sample.prompt else None, text) for text in sample.texts]
    return tag("article", heading, tag("div", sample.settings, class_="links"), *texts, class_="card sample")


def _configurations(runs: Sequence[Run], groups: Sequence[Group]) -> Section:
    body = [*(_differences(group) for group in groups), tag("div", *map(_configuration, runs), class_="columns")]
    return Section("configuration", "Configuration and environment", "", join(body))


def _differences(group: Group) -> Markup | None:
    """The fields in which the recipes of comparable runs differ."""
    flat = [(run, flatten(run.header["recipe"])) for run in group.runs if isinstance(run.header.get("recipe"), dict)]
    names = list(dict.fromkeys(name for _, fields in flat for name in fields))
    rows = [[name, *(fields.get(name, "–") for _, fields in flat)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        return None
    headers = [f"What differs on {group.corpus}", *(run.name for run, _ in flat)]
    return tag("div", table(headers, rows), class_="card wide scroll small")


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """`{"model": {"dim": 8}}` as `{"model.dim": "8"}`."""
    if not isinstance(value, dict):
        return {name: value if isinstance(value, str) else json.dumps(value)}
    flat: dict[str, str] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{name}.{key}" if name else str(key)))
    return flat


def _configuration(run: Run) -> Markup:
    facts = [(name, value) for name, value in _environment(run) if value not in (None, "–")]
    listed = tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in facts))
    recipe = json.dumps(run.header, indent=2, ensure_ascii=False)
    full = tag("details", tag("summary", "Full configuration"), tag("pre", recipe)) if run.header else None
    return tag("article", tag("h3", dot(run.color), run.name), listed, full, class_="card run")


def _environment(run: Run) -> list[tuple[str, object]]:
    train = run.recipe.train if run.recipe else None
    return [
        ("Folder", run.path),
        ("Versions", _versions(run)),
        ("Device", train and train.device),
        ("Precision", train and train.precision),
        ("Seed", train and train.seed),
        ("Trained", f"{amount(run.tokens)} tokens" if run.tokens else None),
        ("Time", duration(run.seconds)),
    ]


def _versions(run: Run) -> str | None:
    names = (("mnemo", "mnemo_version"), ("torch", "torch_version"))
    return ", ".join(f"{name} {run.header[key]}" for name, key in names if run.header.get(key)) or None
