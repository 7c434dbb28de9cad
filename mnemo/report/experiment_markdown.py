"""Results of experiments as Markdown: a page for each experiment, and tables and folded verdicts for an overview."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from mnemo.report.experiment_page import ANSWERS, ExperimentPage, outcome, table_files
from mnemo.report.figure import Figure
from mnemo.report.figure_files import figure_files
from mnemo.report.files import csv_text
from mnemo.report.findings import Sample, Table, Verdict
from mnemo.report.style import CHART_CSS, DARK, LIGHT
from mnemo.report.svg import clean, slugify
from mnemo.report.table_text import cell_texts

MOST_ROWS = 16
"""Longer tables are folded."""
FOLDER = "files"
"""Of figures and tables, next to a page."""
HOW_TO_READ = (
    "± is the standard deviation over seeds. A gain is a mean difference, with its 95% interval in parentheses. "
    '"Preliminary, n = 2": two seeds, where three are planned ([the rule](../experiments.md#the-rule-for-verdicts)).'
)
"""For a page in a folder of the documentation."""


class MarkdownPage(NamedTuple):
    text: str
    files: dict[str, str]
    """Figures as SVG, their numbers and all tables as CSV, by path from the page's folder."""


def experiment_markdown(page: ExperimentPage, evidence: str, files: str) -> MarkdownPage:
    """A whole page. `evidence`: link to the stored results; `files`: folder for its files, seen from the page."""
    tables = table_files(page)
    paper = ", ".join([page.paper, *page.covers])
    command = f"mnemo reproduce {page.name} --budget {page.budget}"
    parts = [
        f"# {plain(page.title)}",
        f"{plain(paper)}. Budget: {plain(page.budget)}.{f' Data: {plain(page.data)}.' if page.data else ''}",
        plain(page.lead or f"The claim: {page.claim}"),
        f"## Verdicts\n\n{plain(capitalised(outcome(page)))}.",
        *([verdict_table(page.verdicts)] if page.verdicts else []),
        *([HOW_TO_READ] if any("preliminary" in each.ours or "gain" in each.ours for each in page.verdicts) else []),
        *(
            ["## Figures", figure_style(), *(figure_block(each, files) for each in page.figures)]
            if page.figures
            else []
        ),
        *(["## Tables", *(_table_block(table, f"{files}/{name}") for name, table in tables.items())] if tables else []),
        *(["## Samples", *map(_sample, page.samples)] if page.samples else []),
        *_bullets("## Differences from the paper", page.notes),
        *_bullets(
            "## How it was measured", [f"{name}: {value}" for name, value in (*page.facts, ("Command", command))]
        ),
        f"{link('All cells', evidence)}: settings, values, seconds, hardware and versions.",
        *_bullets("## Left out", page.problems),
    ]
    made = figure_files(page.figures) | {name: csv_text(each.headers, each.rows) for name, each in tables.items()}
    return MarkdownPage("\n\n".join(parts) + "\n", {f"{files}/{name}": text for name, text in made.items()})


def capitalised(words: str) -> str:
    return words[:1].upper() + words[1:]


def figure_style() -> str:
    """Colours of the figures of a page, which follow `data-theme` of its body, or else the reader's system."""
    light, dark = ("".join(f"--{name}:{color};" for name, color in colors.items()) for colors in (LIGHT, DARK))
    rules = (f"figure.results{{{dark}}}", ".chart .light{display:none}", ".chart .dark{display:inline}")
    chosen = "".join(f'body[data-theme="dark"] {rule}' for rule in rules)
    by_system = "".join(f'body:not([data-theme="light"]) {rule}' for rule in rules)
    return (
        f"<style>{CHART_CSS}figure.results{{max-width:720px;margin:1em 0;padding:14px 16px 10px;"
        f"background:var(--card);border:1px solid var(--rule);border-radius:8px;{light}}}"
        "figure.results .chart{display:block;width:100%;height:auto;overflow:visible}"
        "@media (max-width:42em){figure.results{padding:8px 4px}figure.results .chart{font-size:13.5px}}"
        f"{chosen}@media (prefers-color-scheme:dark){{{by_system}}}</style>"
    )


def figure_block(figure: Figure, folder: str, heading: str = "###") -> str:
    """The picture inside of the page, so that its colours follow the page, and links to its files."""
    # An HTML block of Markdown ends at an empty line, and a picture has none.
    picture = " ".join(figure.svg.split("\n"))
    files = " · ".join(link(kind.upper(), f"{folder}/{figure.slug}.{kind}") for kind in ("svg", "csv"))
    title = f"{heading} {plain(figure.title)}\n\n" if heading else ""
    return f'{title}<figure class="results">{picture}</figure>\n\n{plain(figure.caption)} {files}'


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    rows = [tuple(map(plain, (v.claim, v.paper, v.ours, ANSWERS[v.holds]))) for v in verdicts]
    return markdown_table(("Claim", "The paper", "Ours", "Holds"), rows)


def folded(summary: str, content: str) -> str:
    """Content that is shown after a click on the summary."""
    return f"<details>\n<summary>{escape(clean(summary))}</summary>\n\n{content}\n\n</details>"


def anchor(page: ExperimentPage) -> str:
    """Target of links to an experiment in the overview."""
    return f"experiment-{slugify(page.name)}"


def _table_block(table: Table, path: str) -> str:
    texts, numeric = cell_texts(table.rows, len(table.headers))
    body = markdown_table(
        [plain(header) for header in table.headers], [tuple(map(plain, row)) for row in texts], numeric
    )
    shown = folded(f"{len(table.rows)} rows", body) if len(table.rows) > MOST_ROWS else body
    caption = f"{plain(table.caption)} " if table.caption else ""
    return f"### {plain(table.title)}\n\n{shown}\n\n{caption}{link('CSV', path)}"


def _sample(sample: Sample) -> str:
    text = clean(sample.text)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    note = f"\n\n{plain(sample.note)}" if sample.note else ""
    return f"### {plain(sample.title)}\n\n{fence}text\n{text}\n{fence}{note}"


def _bullets(heading: str, lines: Sequence[str]) -> list[str]:
    return [heading + "\n\n" + "\n".join(f"- {plain(line)}" for line in lines)] if lines else []


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], numeric: frozenset[int] = frozenset()) -> str:
    """A table of cells that are already Markdown."""
    rules = ["---:" if at in numeric else "---" for at in range(len(headers))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, rules, *rows))


def link(words: str, target: str) -> str:
    return f"[{plain(words)}]({quote(target, safe='/#.')})"


def plain(words: object) -> str:
    """Text on one line, with Markdown's special characters escaped."""
    line = " ".join(clean(str(words)).split())
    quiet = re.sub(r"([\\`*_\[\]<>|~$#&])", r"\\\1", line)
    return re.sub(r"^(\d*)([-+.)])(?=\s|$)", r"\1\\\2", quiet)
