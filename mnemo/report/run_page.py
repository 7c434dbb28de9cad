"""The page about runs: cards, a table, learning, memory, plans, samples, configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mnemo.report import page_template, run_figures, run_summary
from mnemo.report.charts import WIDTH
from mnemo.report.figure import Figure
from mnemo.report.figure_files import write_figures
from mnemo.report.files import csv_text, write_text
from mnemo.report.findings import Table
from mnemo.report.growth_table import HEADERS, growth_rows
from mnemo.report.number_text import NO_VALUE, amount, duration
from mnemo.report.page_template import Headline, Link, Section, figure_section
from mnemo.report.run_figures import Group
from mnemo.report.runs import Run, read_runs
from mnemo.report.style import LIGHT
from mnemo.report.svg import NAMESPACE, clean, slugify, standalone

PICTURE = "overview.svg"
"""The main figures in one picture, for a README or a slide."""
KINDS = ("learning-", "sweep-", "positions-")
MOST, COLUMNS = 4, 2
GAP, HEADING = 36.0, 34.0


@dataclass(frozen=True)
class Page:
    html: str
    figures: tuple[Figure, ...]
    others: dict[str, str]
    """Further files by name: the tables, and the main figures in one picture."""


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    lead: str | None = None,
    headline: Callable[[Sequence[Run]], Headline] | None = None,
) -> list[str]:
    """Write the page `out`, and its figures as SVG and CSV in a folder next to it.

    `headline`: the sentence and the figure that the page begins with, computed from the runs.
    Returns notes about missing and broken files and runs, which the page leaves out and lists too.
    """
    found, notes = read_runs(runs)
    folder = out.with_name(f"{out.stem}-files")
    first = None if headline is None else headline(found)
    page = build_page(found, notes, folder=folder.name, title=title, lead=lead, headline=first)
    write_figures(folder, page.figures, page.others)
    write_text(out, page.html)
    return [*notes, *(f"{run.name}: {note}" for run in found for note in run.notes)]


def build_page(
    runs: Sequence[Run],
    notes: Sequence[str],
    *,
    folder: str,
    title: str | None = None,
    lead: str | None = None,
    headline: Headline | None = None,
) -> Page:
    """`folder`: where the files of the figures are, seen from the page."""
    groups = run_figures.grouped(runs)
    first = () if headline is None or headline.figure is None else (headline.figure,)
    shown = {figure.slug for figure in first}
    sections = [section for section in _sections(runs, groups, shown) if section is not None]
    drawn = (*first, *(figure for section in sections for figure in section.figures))
    picture = overview(drawn)
    html = page_template.build(
        title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side"),
        lead or _lead(runs, groups),
        sections,
        folder=folder,
        problems=[*notes, *(f"{run.name}: {note}" for run in runs for note in run.notes)],
        cards=run_summary.cards(groups),
        link=Link("The main figures in one picture", f"{folder}/{PICTURE}") if picture else None,
        headline=headline,
    )
    others = {name: csv_text(table.headers, table.rows) for name, table in _growth_tables(runs).items()}
    return Page(html, drawn, others if picture is None else others | {PICTURE: picture})


def _lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    corpora = ", ".join(dict.fromkeys(group.corpus for group in groups))
    trained = amount(sum(run.tokens or 0 for run in runs))
    return f"Trained on {trained} tokens of {corpora}." if trained != "0" else f"Corpus: {corpora}."


def _sections(runs: Sequence[Run], groups: Sequence[Group], shown: Set[str]) -> list[Section | None]:
    """`shown`: figures that are on the page already."""
    drawn = [draw(group) for group in groups for draw in (run_figures.learning_curves, run_figures.final_values)]
    learning = [figure for figure in drawn if figure is None or figure.slug not in shown]
    memory = [draw(group) for group in groups for draw in (run_figures.memory_sweep, run_figures.loss_by_position)]
    return [
        Section("runs", "Runs", "", "runs.html.j2", run_summary.run_table(runs)),
        figure_section(
            "learning",
            "Learning",
            "How the loss falls while a model trains, and where it ends. Lower is better.",
            [*learning, run_figures.speeds(runs)],
        ),
        _rollbacks(runs),
        figure_section("memory", "Memory", "What the model gains from the text before its current segment.", memory),
        figure_section(
            "plans",
            "Memory plans",
            "How much of the past each layer keeps: memory in colour, pale for short-range layers; segment in grey. "
            "Memory tokens are hatched: those that are read come before the segment, those that are written after it.",
            run_figures.memory_plans(runs),
            "small-figures",
        ),
        _growth(runs),
        _samples(runs),
        _configurations(runs, groups),
    ]


def _rollbacks(runs: Sequence[Run]) -> Section | None:
    found = [f"{run.name}: {line}" for run in runs for line in run.rollbacks]
    about = "Divergences after which training went back to an earlier checkpoint. The curves show what was kept."
    return Section("rollbacks", "Rollbacks", about, "notes.html.j2", found) if found else None


def _growth(runs: Sequence[Run]) -> Section | None:
    tables = _growth_tables(runs)
    about = "The largest sizes at every kept checkpoint while the model reads a text: what grows before a divergence."
    return Section("growth", "What grew", about, "tables.html.j2", tables) if tables else None


def _growth_tables(runs: Sequence[Run]) -> dict[str, Table]:
    """By the name of their CSV file."""
    found = [(number, run) for number, run in enumerate(runs) if run.results.growth]
    return {
        f"growth-{number}-{slugify(run.name)}.csv": Table(run.name, HEADERS, growth_rows(run.results.growth))
        for number, run in found
    }


def _samples(runs: Sequence[Run]) -> Section | None:
    found = [(run, sample) for run in runs for sample in run.results.samples]
    about = "Text that the models wrote; the prompt is grey."
    return Section("samples", "Samples", about, "run_samples.html.j2", found) if found else None


def _configurations(runs: Sequence[Run], groups: Sequence[Group]) -> Section:
    content = {
        "differences": [table for table in map(_differences, groups) if table is not None],
        "runs": [(run, environment(run), _header_text(run)) for run in runs],
    }
    return Section("configuration", "Configuration and environment", "", "configurations.html.j2", content)


def _header_text(run: Run) -> str:
    return json.dumps(run.header, indent=2, ensure_ascii=False) if run.header else ""


def _differences(group: Group) -> tuple[list[str], list[list[str]]] | None:
    """Headers and rows of the fields in which the recipes of comparable runs differ."""
    flat = [(run, flatten(run.header["recipe"])) for run in group.runs if isinstance(run.header.get("recipe"), dict)]
    names = list(dict.fromkeys(name for _, fields in flat for name in fields))
    rows = [[name, *(fields.get(name, NO_VALUE) for _, fields in flat)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return ([f"What differs on {group.corpus}", *(run.name for run, _ in flat)], rows) if rows else None


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """`{"model": {"dim": 8}}` as `{"model.dim": "8"}`."""
    if not isinstance(value, dict):
        return {name: value if isinstance(value, str) else json.dumps(value)}
    flat: dict[str, str] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{name}.{key}" if name else str(key)))
    return flat


def environment(run: Run) -> list[tuple[str, object]]:
    train = run.recipe.train if run.recipe else None
    names = (("mnemo", "mnemo_version"), ("torch", "torch_version"))
    facts = [
        ("Folder", run.path),
        ("Versions", ", ".join(f"{name} {run.header[key]}" for name, key in names if run.header.get(key)) or None),
        ("Device", train and train.device),
        ("Precision", train and train.precision),
        ("Seed", train and train.seed),
        ("Trained", f"{amount(run.tokens)} tokens" if run.tokens else None),
        ("Time", duration(run.seconds)),
        *((f"Changed at step {each.step:,}", each.describe()) for each in run.overrides),
    ]
    return [(name, value) for name, value in facts if value not in (None, NO_VALUE)]


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
