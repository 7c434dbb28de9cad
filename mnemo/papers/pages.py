"""Verdicts and report pages of experiments, made from their results."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemo.papers import every_experiment
from mnemo.papers.experiment import SELF_TEST, Budget, Experiment, Results
from mnemo.papers.store import CELLS, RESULTS, Found, grid_folder, load_grid
from mnemo.report.experiment_markdown import MOST_ROWS, markdown_overview
from mnemo.report.experiment_page import ANSWERS, ExperimentPage, write_experiment, write_overview
from mnemo.report.findings import Table, Verdict

INDEX, REPORT = "index.html", "report.html"
LEAD = (
    "Every claim with the paper's numbers and ours, and whether it holds by the rule of [experiments](experiments.md). "
    "`mnemo reproduce --list` names all experiments; `mnemo reproduce --out results --overview docs/RESULTS.md` writes "
    "this file from the stored results, and `mnemo reproduce --out results --report` writes pages with figures. Times "
    "are sums over cells, several of which may have shared a device."
)


@dataclass(frozen=True)
class Judged:
    verdicts: Sequence[Verdict]

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Answer, claim, the paper's numbers and ours."""
        return [(ANSWERS[each.holds], each.claim, each.paper, each.ours) for each in self.verdicts]

    def json(self) -> dict[str, Any]:
        fields = ("claim", "paper", "ours", "holds")
        return {"verdicts": [{name: getattr(each, name) for name in fields} for each in self.verdicts]}


def judged(experiment: Experiment, found: Found) -> Judged:
    return Judged(_verdicts(experiment, complete(experiment, found).results))


def _verdicts(experiment: Experiment, results: Results) -> Sequence[Verdict]:
    """A self-test has none: it says nothing about the claims."""
    return () if results.budget == "self-test" else experiment.verdicts(results)


INCOMPLETE = (ArithmeticError, LookupError, ValueError)
"""Raised by verdicts, tables and figures if a result lacks a value, or has text or an empty list in its place."""


def complete(experiment: Experiment, found: Found) -> Found:
    """Leave out, and name, results that lack values which verdicts, tables or figures need."""
    if _incomplete(experiment, found.results) is None:
        return found
    kept, problems = [], list(found.problems)
    for each in found.results.cells:
        why = _incomplete(experiment, replace(found.results, cells=[each]))
        if why is None:
            kept.append(each)
        else:
            problems.append(f"cell {each.cell.name}: its result is incomplete ({why})")
    return Found(replace(found.results, cells=kept), tuple(problems))


def _incomplete(experiment: Experiment, results: Results) -> str | None:
    try:
        for part in (experiment.verdicts, experiment.tables, experiment.figures, experiment.samples):
            part(results)
    except INCOMPLETE as error:
        return f"{type(error).__name__}: {error}"
    return None


def build_page(experiment: Experiment, found: Found) -> ExperimentPage:
    """Return the content of an experiment's page: verdicts, tables, figures and settings."""
    found = complete(experiment, found)
    results = found.results
    return ExperimentPage(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        covers=experiment.covers,
        claim=experiment.claim,
        budget=results.budget,
        verdicts=_verdicts(experiment, results),
        about_verdicts=SELF_TEST if results.budget == "self-test" else "",
        tables=experiment.tables(results),
        figures=experiment.figures(results),
        samples=experiment.samples(results),
        notes=experiment.notes,
        facts=_facts(experiment, results),
        problems=found.problems,
    )


def _facts(experiment: Experiment, results: Results) -> list[tuple[str, str]]:
    cells = results.cells
    facts = [("Cells", f"{len(cells)} of {len(experiment.cells(results.budget))} done")]
    if not cells:
        return facts
    hardware = Counter(each.hardware for each in cells)
    versions = Counter(", ".join(f"{name} {value}" for name, value in each.versions.items()) for each in cells)
    seeds = sorted({each.labels["seed"] for each in cells if "seed" in each.labels})
    seconds = [each.seconds for each in cells]
    return [
        *facts,
        ("Hardware", " and ".join(hardware)),
        ("Versions", " and ".join(versions)),
        *([("Seeds", ", ".join(map(str, seeds)))] if seeds else []),
        ("Time", f"{sum(seconds):,.0f} s over all cells, {statistics.median(seconds):,.0f} s the median cell"),
    ]


def write_page(experiment: Experiment, site: Path, budget: Budget, found: Found) -> Path:
    page = build_page(experiment, found)
    return write_experiment(page, grid_folder(site, experiment.name, budget), overview=f"../../{INDEX}")


def write_index(out: Path, site: Path) -> Path:
    """Write the page that lists the experiments with results in `out` and a page in `site`."""
    links = [(page, f"{page.name}/{page.budget}/{REPORT}") for page in all_pages(out)]
    return write_overview([(page, link) for page, link in links if (site / link).exists()], site / INDEX)


def has_results(out: Path, experiment: Experiment, budget: Budget) -> bool:
    grid = grid_folder(out, experiment.name, budget)
    return (grid / RESULTS).exists() or (grid / CELLS).exists()


def all_pages(out: Path) -> list[ExperimentPage]:
    """Contents of the page of every experiment and budget with results in `out`."""
    return [
        build_page(experiment, load_grid(grid_folder(out, experiment.name, budget), experiment, budget))
        for experiment in every_experiment().values()
        for budget in experiment.budgets
        if has_results(out, experiment, budget)
    ]


def results_markdown(out: Path, beside: Path) -> str | None:
    """All results in `out` as Markdown, for a file in the folder `beside`; None without results.

    The text depends on the results alone and links to them. Figures and long tables are only in the report pages.
    """
    prefix = Path(os.path.relpath(out.resolve(), beside)).as_posix()
    pages = [replace(page, figures=(), tables=_short(page.tables)) for page in all_pages(out)]
    if not pages:
        return None
    text = markdown_overview([(page, f"{prefix}/{page.name}/{page.budget}/{RESULTS}") for page in pages])
    return f"# Results\n\n{LEAD}\n\n{text}"


def _short(tables: Sequence[Table]) -> list[Table]:
    return [table for table in tables if len(table.rows) <= MOST_ROWS]
