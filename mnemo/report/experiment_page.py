"""Pages about experiments: one for each, verdicts first, and one that lists them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mnemo.report import frame
from mnemo.report.content import Figure
from mnemo.report.figure_files import write_figures
from mnemo.report.files import csv_text, write_text
from mnemo.report.findings import Sample, Table, Verdict
from mnemo.report.frame import Section, kept_together
from mnemo.report.markup import Markup, join, table, tag
from mnemo.report.svg import slugify

FILES = "report-files"
"""Folder of the figures and tables, next to the page."""
ANSWERS = {True: "yes", False: "no", None: "open"}
SIGNS = {"yes": "✓", "no": "✗", "open": "?"}


@dataclass(frozen=True, kw_only=True)
class ExperimentPage:
    name: str
    title: str
    paper: str
    covers: Sequence[str]
    """Tables and figures of the paper."""
    claim: str
    budget: str
    verdicts: Sequence[Verdict] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = ()
    """What differs from the paper, and why."""
    facts: Sequence[tuple[str, str]] = ()
    """Hardware, versions, seeds, times, how much of the grid is done."""
    problems: Sequence[str] = ()
    """Result files that were left out."""


def write_experiment(page: ExperimentPage, folder: Path, *, overview: str | None = None) -> Path:
    """Write `folder`/report.html, with its figures and tables in report-files/; `overview` links to all of them."""
    _refuse_equal_names([figure.slug for figure in page.figures])
    others = {name: csv_text(listed.headers, listed.rows) for name, listed in table_files(page).items()}
    write_figures(folder / FILES, page.figures, others)
    path = folder / "report.html"
    sections = [section for section in _sections(page) if section is not None]
    link = tag("a", "All experiments", href=quote(overview)) if overview else None
    lead = f"The claim: {page.claim}"
    write_text(path, frame.build(page.title, lead, sections, problems=page.problems, details=_details(page), link=link))
    return path


def _refuse_equal_names(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"two figures of one page are called '{twice[0]}'")


def table_files(page: ExperimentPage) -> dict[str, Table]:
    """Names of the tables' files; the number keeps equal titles apart, and tables from figures."""
    return {f"table-{at}-{slugify(listed.title)}.csv": listed for at, listed in enumerate(page.tables, 1)}


def tally(verdicts: Sequence[Verdict]) -> str:
    """`2 of 4 claims hold, 1 does not, 1 is open`."""
    if not verdicts:
        return "no verdict yet"
    counts = Counter(verdict.holds for verdict in verdicts)
    words = [f"{counts[True]} of {len(verdicts)} claims {'holds' if counts[True] == 1 else 'hold'}"]
    if counts[False]:
        words.append(f"{counts[False]} {'does' if counts[False] == 1 else 'do'} not")
    if counts[None]:
        words.append(f"{counts[None]} {'is' if counts[None] == 1 else 'are'} open")
    return ", ".join(words)


def _details(page: ExperimentPage) -> Markup:
    facts = [("Paper", page.paper), ("Covers", ", ".join(page.covers)), ("Budget", page.budget)]
    command = ("Command", tag("code", f"mnemo reproduce {page.name} --budget {page.budget}"))
    return frame.facts_list([fact for fact in facts if fact[1]] + [command], "details")


def _sections(page: ExperimentPage) -> list[Section | None]:
    return [
        _verdicts(page),
        _tables(page),
        frame.figure_section("figures", "Figures", "", page.figures, FILES),
        _samples(page),
        _notes(page),
        _facts(page),
    ]


def _verdicts(page: ExperimentPage) -> Section:
    about = _sentence(tally(page.verdicts))
    body = tag("div", verdict_table(page.verdicts), class_="card wide") if page.verdicts else Markup("")
    return Section("verdicts", "Verdicts", about, body)


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def verdict_table(verdicts: Sequence[Verdict]) -> Markup:
    rows = [(each.claim, kept_together(each.paper), kept_together(each.ours), _answer(each)) for each in verdicts]
    return table(("Claim", "The paper", "Ours", "Holds"), rows, css="stacked verdicts")


def _answer(verdict: Verdict) -> Markup:
    answer = ANSWERS[verdict.holds]
    sign = tag("span", SIGNS[answer], aria_hidden="true")
    return tag("span", sign, f" {answer}", class_=f"answer {answer}")


def _tables(page: ExperimentPage) -> Section | None:
    drawn = [_draw_table(listed, name) for name, listed in table_files(page).items()]
    return Section("tables", "Tables", "", tag("div", *drawn, class_="tables")) if drawn else None


def _draw_table(listed: Table, name: str) -> Markup:
    about = tag("p", listed.caption, class_="caption") if listed.caption else None
    values = tag("div", frame.value_table(listed.headers, listed.rows), class_="scroll", tabindex="0")
    files = tag("div", tag("a", "CSV", href=quote(f"{FILES}/{name}")), class_="links")
    return tag("div", tag("h3", listed.title), about, values, files, class_="card table")


def _samples(page: ExperimentPage) -> Section | None:
    drawn = [
        tag(
            "article",
            tag("h3", sample.title),
            tag("div", sample.note, class_="links") if sample.note else None,
            tag("pre", sample.text, tabindex="0"),
            class_="card sample",
        )
        for sample in page.samples
    ]
    if not drawn:
        return None
    return Section("samples", "Samples", "", tag("div", *drawn, class_="columns"))


def _notes(page: ExperimentPage) -> Section | None:
    if not page.notes:
        return None
    listed = tag("ul", *(tag("li", *_with_code(note)) for note in page.notes), class_="prose")
    return Section("differences", "What differs from the paper", "", listed)


def _with_code(text: str) -> list[str | Markup]:
    """What stands between backticks as code."""
    return [tag("code", part) if index % 2 else part for index, part in enumerate(text.split("`"))]


def _facts(page: ExperimentPage) -> Section | None:
    if not page.facts:
        return None
    return Section("facts", "How it was measured", "", tag("div", frame.facts_list(page.facts), class_="card run"))


def write_overview(pages: Sequence[tuple[ExperimentPage, str]], path: Path, *, title: str | None = None) -> Path:
    """Write the page that lists experiments, by paper, each with its verdicts and a link to its page."""
    papers = dict.fromkeys(page.paper for page, _ in pages)
    sections = [
        Section(
            f"paper-{at}-{slugify(paper)}", paper, "", join(_entry(*pair) for pair in pages if pair[0].paper == paper)
        )
        for at, paper in enumerate(papers, 1)
    ]
    verdicts = [verdict for page, _ in pages for verdict in page.verdicts]
    count = f"{len(pages)} experiment{'' if len(pages) == 1 else 's'}"
    lead = f"{count}: {tally(verdicts)}."
    problems = [f"{page.name}: {problem}" for page, _ in pages for problem in page.problems]
    write_text(path, frame.build(title or "The papers' experiments", lead, sections, problems=problems))
    return path


def _entry(page: ExperimentPage, link: str) -> Markup:
    heading = tag("h3", tag("a", page.title, href=quote(link)))
    covers = ", ".join(page.covers)
    words = " · ".join(filter(None, (page.name, covers, f"budget {page.budget}", tally(page.verdicts))))
    return tag(
        "article",
        heading,
        tag("p", words, class_="links"),
        tag("p", f"The claim: {page.claim}", class_="about"),
        verdict_table(page.verdicts) if page.verdicts else None,
        class_="card entry",
        id=f"experiment-{slugify(page.name)}",
    )
