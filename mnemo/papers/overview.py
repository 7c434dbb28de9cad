"""The overview of all results: main figures and numbers first, then every experiment with its verdicts.

As one Markdown file of a repository (docs/RESULTS.md), as pages of the documentation site, and as the HTML page that
lists the experiments of `mnemo reproduce`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mnemo.errors import plural
from mnemo.papers.evidence import Evidence
from mnemo.papers.headlines import Headline, headlines
from mnemo.papers.main_figures import MainFigure, main_figures
from mnemo.papers.pages import INDEX, build_page, outline, shown, stored
from mnemo.papers.store import RESULTS
from mnemo.report.experiment_markdown import (
    FOLDER,
    anchor,
    experiment_markdown,
    figure_block,
    figure_style,
    folded,
    link,
    markdown_table,
    plain,
    verdict_table,
)
from mnemo.report.experiment_page import ExperimentPage, outcome, tally, write_overview
from mnemo.report.figure_files import figure_files
from mnemo.report.findings import Table

MEASUREMENTS = "measurements"
"""The folder of measurements that are no experiments, beside the file."""
HEADERS = ("Claim", "Data", "The paper", "Ours", "Holds")
LinkTo = Callable[[str], str]
"""From the name of an experiment, or of a page such as `speed.md`, to the target of a link."""


class Site(NamedTuple):
    """Pages of the documentation site; paths are those of the repository's pages, without their folder."""

    overview: str
    """In place of RESULTS.md."""
    pages: dict[str, str]
    """Text of every experiment's page, by path."""
    files: dict[str, str]
    """Figures and tables, by path."""


def overview_markdown(out: Path, beside: Path) -> str | None:
    """Tables of the main numbers and of all experiments in `out`, for a file in `beside`; None without results.

    Measurements that are no experiments are taken from the folder `measurements` in `beside`.
    """
    pages = [outline(*each) for each in stored(out)]
    if not pages:
        return None
    prefix = Path(os.path.relpath(out.resolve(), beside)).as_posix()
    linked = [(page, f"{prefix}/{page.name}/{page.budget}/{RESULTS}") for page in pages]
    where = {page.name: path for page, path in linked}
    rows = headlines(Evidence([out], beside / MEASUREMENTS))
    parts = [
        "# Results",
        _lead(pages),
        "The site of the documentation (`make docs`) shows the same with a figure for the main claim of each paper and "
        "a page for each experiment; `mnemo reproduce --out results --overview docs/RESULTS.md` writes this file.",
        *(
            ["## Main numbers", _about_headlines(), headline_table(rows, lambda name: where.get(name, name))]
            if rows
            else []
        ),
        "## All experiments",
        "Links lead to the stored results: every trained model and measurement with its settings.",
        markdown_table(("Experiment", "What it tests", "Data", "Verdicts"), [_row(*each) for each in linked]),
    ]
    return "\n\n".join(parts) + "\n"


def _lead(pages: Sequence[ExperimentPage]) -> str:
    verdicts = [verdict for page in pages for verdict in page.verdicts]
    return (
        f"Claims of the papers, measured again with this code: {plural(len(pages), 'experiment')}, {tally(verdicts)}. "
        "[One rule](experiments.md#the-rule-for-verdicts) decides in all of them. *Open* means that the measurements "
        "do not decide. *Not at this budget* means that the claim does not hold here, with smaller models and far "
        "fewer steps than in its paper."
    )


def _about_headlines() -> str:
    return (
        "Well-known claims that hold in our experiments, and findings of our own. Claims that are open, or do not hold "
        "at this budget, are listed with their experiment only. ± is the standard deviation over seeds."
    )


def _row(page: ExperimentPage, target: str) -> tuple[str, ...]:
    name = f'<a id="{anchor(page)}"></a>{link(page.name, target)}'
    covers = ", ".join(page.covers)
    return (name, plain(f"{page.title} ({page.paper}, {covers})"), plain(page.data or "-"), plain(outcome(page)))


def headline_table(rows: Sequence[Headline], link_to: LinkTo) -> str:
    cells = [
        (link(row.claim, link_to(row.page)), *map(plain, (row.data, row.paper, row.ours, row.verdict))) for row in rows
    ]
    return markdown_table(HEADERS, cells)


def site(out: Path, docs: Path) -> Site:
    """All pages of the site: the overview, and a page with figures for each experiment in `out`."""
    evidence = Evidence([out], docs / MEASUREMENTS)
    pages = [build_page(*each) for each in stored(out)]
    linked = list(zip(pages, _paths(pages), strict=True))
    texts, files = {}, {}
    for page, path in linked:
        made = experiment_markdown(page, f"../../results/{page.name}/{page.budget}/{RESULTS}", Path(path).stem)
        texts[path] = made.text
        files |= {f"results/{name}": text for name, text in made.files.items()}
    figures = main_figures(evidence)
    files |= {f"results/{FOLDER}/{name}": text for name, text in figure_files(each.figure for each in figures).items()}
    return Site(_site_overview(linked, figures, headlines(evidence)), texts, files)


def _paths(pages: Sequence[ExperimentPage]) -> Iterator[str]:
    """`results/NAME.md`, with the budget where there are results of several."""
    times = Counter(page.name for page in pages)
    for page in pages:
        yield f"results/{page.name}{f'-{page.budget}' if times[page.name] > 1 else ''}.md"


def _site_overview(
    linked: Sequence[tuple[ExperimentPage, str]], figures: Sequence[MainFigure], rows: Sequence[Headline]
) -> str:
    where = {page.name: path for page, path in linked}
    parts = ["# Results", _lead([page for page, _ in linked]), "## The papers' main claims", figure_style()]
    papers = list(dict.fromkeys(each.paper for each in figures))
    for paper in papers:
        parts.append(f"### {plain(paper)}")
        for each in figures:
            if each.paper == paper:
                parts += [f"**{plain(each.claim)}**", figure_block(each.figure, f"results/{FOLDER}", heading="")]
    parts += ["## Main numbers", _about_headlines(), headline_table(rows, lambda name: where.get(name, name))]
    parts.append("## Verdicts by experiment")
    for paper in dict.fromkeys(page.paper for page, _ in linked):
        parts.append(f"### {plain(paper)}: verdicts")
        parts += [_folded_experiment(page, path) for page, path in linked if page.paper == paper]
    return "\n\n".join(parts) + "\n"


def _folded_experiment(page: ExperimentPage, path: str) -> str:
    whole = link("Figures, tables, and how it was measured", path)
    target = f'<a id="{anchor(page)}"></a>'
    about = f"{target}{plain(', '.join(page.covers))}. {plain(page.claim)} {whole}."
    content = f"{about}\n\n{verdict_table(page.verdicts)}" if page.verdicts else about
    summary = " · ".join(filter(None, (page.title, page.data, outcome(page))))
    # Sphinx needs the target outside of the folded part, and browsers open the part for a link to the one inside.
    return f"{target}\n\n{folded(summary, content)}"


def write_index(out: Path, site: Path) -> Path:
    """Write the page about the experiments that have a page in `site`, also those of earlier commands, and no others.

    `out`: where to look for results of pages that do not say where they are.
    """
    listed = list(shown(site, out))
    evidence = Evidence([], known={(each.name, found.results.budget): found for _, each, found in listed})
    rows = [[row.claim, row.data, row.paper, row.ours, row.verdict] for row in headlines(evidence)]
    return write_overview(
        [(outline(experiment, found), target) for target, experiment, found in listed],
        site / INDEX,
        figures=[each.figure for each in main_figures(evidence)],
        headlines=Table("Main numbers", HEADERS, rows) if rows else None,
    )
