"""Pages about experiments: one for each, verdicts first, and one that lists them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mnemo.report import page_template
from mnemo.report.figure import Figure
from mnemo.report.figure_files import write_figures
from mnemo.report.files import csv_text, write_text
from mnemo.report.findings import ANSWERS, Sample, Table, Verdict
from mnemo.report.page_template import Link, Section, figure_section
from mnemo.report.svg import slugify

__all__ = [
    "ANSWERS",
    "FILES",
    "ExperimentPage",
    "outcome",
    "table_files",
    "tally",
    "write_experiment",
    "write_overview",
]

FILES = "report-files"
"""Folder of the figures and tables, next to the page."""


@dataclass(frozen=True, kw_only=True)
class ExperimentPage:
    name: str
    title: str
    paper: str
    covers: Sequence[str]
    """Tables and figures of the paper."""
    claim: str
    budget: str
    data: str = ""
    """Text or task of the measurements, and that of the paper if it differs."""
    verdicts: Sequence[Verdict] = ()
    about_verdicts: str = ""
    """Why there are none; by default there are none yet."""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = ()
    """What differs from the paper, and why."""
    facts: Sequence[tuple[str, str]] = ()
    """Hardware, versions, seeds, times, how much of the grid is done."""
    problems: Sequence[str] = ()
    """Result files that were left out."""
    lead: str = ""
    """First sentences of the page; by default the claim."""
    command: str = ""
    """The command that made it; by default that of the experiment."""


def write_experiment(page: ExperimentPage, folder: Path, *, overview: str | None = None) -> Path:
    """Write `folder`/report.html, with its figures and tables in report-files/.

    `overview`: link to the page that lists all experiments.
    """
    twice = [slug for slug, count in Counter(figure.slug for figure in page.figures).items() if count > 1]
    if twice:
        raise ValueError(f"two figures of one page are called '{twice[0]}'")
    others = {name: csv_text(table.headers, table.rows) for name, table in table_files(page).items()}
    write_figures(folder / FILES, page.figures, others)
    path = folder / "report.html"
    html = page_template.build(
        page.title,
        page.lead or f"The claim: {page.claim}",
        _sections(page),
        folder=FILES,
        problems=page.problems,
        details=_details(page),
        link=Link("All experiments", overview) if overview else None,
    )
    write_text(path, html)
    return path


def table_files(page: ExperimentPage) -> dict[str, Table]:
    """File names of the tables; the number distinguishes equal titles, and tables from figures."""
    return {f"table-{at}-{slugify(table.title)}.csv": table for at, table in enumerate(page.tables, 1)}


def outcome(page: ExperimentPage) -> str:
    """A page's verdicts in a few words, or why it has none."""
    return page.about_verdicts or tally(page.verdicts)


def tally(verdicts: Sequence[Verdict]) -> str:
    """`2 of 4 claims hold, 1 does not at this budget, 1 is open`."""
    if not verdicts:
        return "no verdict yet"
    counts = Counter(verdict.holds for verdict in verdicts)
    words = [f"{counts[True]} of {len(verdicts)} claims {'holds' if counts[True] == 1 else 'hold'}"]
    if counts[False]:
        words.append(f"{counts[False]} {'does' if counts[False] == 1 else 'do'} not at this budget")
    if counts[None]:
        words.append(f"{counts[None]} {'is' if counts[None] == 1 else 'are'} open")
    return ", ".join(words)


def _details(page: ExperimentPage) -> list[tuple[str, str]]:
    command = page.command or f"mnemo reproduce {page.name} --budget {page.budget}"
    facts = [
        ("Paper", page.paper),
        ("Covers", ", ".join(page.covers)),
        ("Data", page.data),
        ("Budget", page.budget),
        ("Command", command),
    ]
    return [fact for fact in facts if fact[1]]


def _sections(page: ExperimentPage) -> list[Section]:
    counted = outcome(page)
    optional = [
        Section("tables", "Tables", "", "tables.html.j2", table_files(page)),
        figure_section("figures", "Figures", "", page.figures),
        Section("samples", "Samples", "", "samples.html.j2", page.samples),
        Section("differences", "What differs from the paper", "", "notes.html.j2", page.notes),
        Section("facts", "How it was measured", "", "facts.html.j2", page.facts),
    ]
    verdicts = Section("verdicts", "Verdicts", f"{counted[0].upper()}{counted[1:]}.", "verdicts.html.j2", page.verdicts)
    return [verdicts, *(section for section in optional if section and (section.content or section.figures))]


def write_overview(
    pages: Sequence[tuple[ExperimentPage, str]],
    path: Path,
    *,
    figures: Sequence[Figure] = (),
    headlines: Table | None = None,
) -> Path:
    """Write the page that lists experiments by paper, each with a link to its page and its verdicts, folded.

    It begins with `figures` of the main claims and a table of the main numbers.
    """
    papers = dict.fromkeys(page.paper for page, _ in pages)
    sections = [
        Section(
            f"paper-{at}-{slugify(paper)}",
            paper,
            "",
            "experiments.html.j2",
            [_entry(page, link) for page, link in pages if page.paper == paper],
        )
        for at, paper in enumerate(papers, 1)
    ]
    first = [
        figure_section("main-claims", "The papers' main claims", "", figures),
        Section("headlines", "Main numbers", "", "headlines.html.j2", headlines) if headlines else None,
    ]
    write_figures(path.parent / FILES, figures, {})
    verdicts = [verdict for page, _ in pages for verdict in page.verdicts]
    lead = f"{len(pages)} experiment{'' if len(pages) == 1 else 's'}: {tally(verdicts)}."
    problems = [f"{page.name}: {problem}" for page, _ in pages for problem in page.problems]
    shown = [section for section in (*first, *sections) if section is not None]
    write_text(path, page_template.build("The papers' experiments", lead, shown, folder=FILES, problems=problems))
    return path


def _entry(page: ExperimentPage, link: str) -> dict[str, object]:
    parts = (page.name, ", ".join(page.covers), page.data, f"budget {page.budget}")
    words = " · ".join(filter(None, parts))
    return {
        "page": page,
        "link": link,
        "words": words,
        "outcome": outcome(page),
        "id": f"experiment-{slugify(page.name)}",
    }
