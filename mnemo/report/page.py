"""The HTML page: one file that works offline, with nothing in it that could run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mnemo.report import figures, frame, summary
from mnemo.report.content import Figure
from mnemo.report.figures import Group
from mnemo.report.frame import Section
from mnemo.report.markup import Markup, dot, join, table, tag
from mnemo.report.overview import overview
from mnemo.report.results import Sample
from mnemo.report.runs import Run
from mnemo.report.scales import amount, duration

PICTURE = "overview.svg"


@dataclass(frozen=True)
class Page:
    html: str
    figures: tuple[Figure, ...]
    picture: str | None
    """The main figures in one"""


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
    html = frame.build(
        title,
        lead,
        sections,
        problems=[*notes, *(f"{run.name}: {note}" for run in runs for note in run.notes)],
        top=summary.cards(groups),
        link=tag("a", "Its main figures in one picture", href=quote(f"{folder}/{PICTURE}")) if picture else None,
    )
    return Page(html, drawn, picture)


def _lead(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    corpora = ", ".join(dict.fromkeys(group.corpus for group in groups))
    trained = amount(sum(run.tokens or 0 for run in runs))
    return f"Trained on {trained} tokens of {corpora}." if trained != "0" else f"Corpus: {corpora}."


def _sections(runs: Sequence[Run], groups: Sequence[Group], folder: str) -> list[Section | None]:
    return [
        Section("runs", "Runs", "", summary.run_table(runs)),
        _learning(runs, groups, folder),
        _memory(groups, folder),
        _plans(runs, folder),
        _samples(runs),
        _configurations(runs, groups),
    ]


def _learning(runs: Sequence[Run], groups: Sequence[Group], folder: str) -> Section | None:
    about = "How the loss falls while a model trains, and where it ends. Lower is better."
    drawn = [draw(group) for group in groups for draw in (figures.learning_curves, figures.final_values)]
    return frame.figure_section("learning", "Learning", about, [*drawn, figures.speeds(runs)], folder)


def _memory(groups: Sequence[Group], folder: str) -> Section | None:
    about = "What the model gains from the text before the segment that it is reading."
    drawn = [draw(group) for group in groups for draw in (figures.memory_sweep, figures.loss_by_position)]
    return frame.figure_section("memory", "Memory", about, drawn, folder)


def _plans(runs: Sequence[Run], folder: str) -> Section | None:
    about = (
        "Which layer keeps how much of the past: the memory in colour, pale where it is short range, the segment grey."
    )
    return frame.figure_section(
        "plans", "Memory plans", about, map(figures.memory_plan, runs), folder, "figures small-figures"
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
    recipe = json.dumps(run.header, indent=2, ensure_ascii=False)
    full = tag("details", tag("summary", "Full configuration"), tag("pre", recipe)) if run.header else None
    return tag("article", tag("h3", dot(run.color), run.name), frame.facts_list(facts), full, class_="card run")


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
