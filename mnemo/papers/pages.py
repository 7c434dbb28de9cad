"""From results to verdicts and pages."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemo.papers import every_experiment
from mnemo.papers.experiment import BUDGETS, Budget, Experiment, Results
from mnemo.papers.store import Found, grid_folder, read_grid
from mnemo.report.experiment_markdown import markdown_overview
from mnemo.report.experiment_page import ANSWERS, ExperimentPage, write_experiment, write_overview
from mnemo.report.findings import Verdict

INDEX, REPORT = "index.html", "report.html"
LEAD = (
    "What `mnemo reproduce` measured: every claim with the paper's numbers and ours, and whether it holds. `mnemo "
    "reproduce --list` names all experiments, and `mnemo reproduce --overview` writes this page. Times are sums over "
    "cells, several of which may have shared a device."
)


@dataclass(frozen=True)
class Judged:
    verdicts: Sequence[Verdict]

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """The answer, the claim, the paper's numbers, ours."""
        return [(ANSWERS[each.holds], each.claim, each.paper, each.ours) for each in self.verdicts]

    def json(self) -> dict[str, Any]:
        fields = ("claim", "paper", "ours", "holds")
        return {"verdicts": [{name: getattr(each, name) for name in fields} for each in self.verdicts]}


def judged(experiment: Experiment, found: Found) -> Judged:
    return Judged(experiment.verdicts(complete(experiment, found).results))


INCOMPLETE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def complete(experiment: Experiment, found: Found) -> Found:
    """Without results that lack what verdicts, tables and figures are made of; those are named."""
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
    found = complete(experiment, found)
    results = found.results
    return ExperimentPage(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        covers=experiment.covers,
        claim=experiment.claim,
        budget=results.budget,
        verdicts=experiment.verdicts(results),
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


def write_page(experiment: Experiment, out: Path, budget: Budget, found: Found) -> Path:
    page = build_page(experiment, found)
    return write_experiment(page, grid_folder(out, experiment.name, budget), overview=f"../../{INDEX}")


def write_index(out: Path) -> Path:
    """The overview of everything in `out`."""
    return write_overview(all_pages(out), out / INDEX)


def all_pages(out: Path) -> list[tuple[ExperimentPage, str]]:
    """Every experiment with results in `out`, with the link to its page from there."""
    pages = []
    for experiment in every_experiment().values():
        for budget in BUDGETS:
            grid = grid_folder(out, experiment.name, budget)
            if (grid / REPORT).exists():
                link = f"{experiment.name}/{budget}/{REPORT}"
                pages.append((build_page(experiment, read_grid(grid, experiment, budget)), link))
    return pages


def results_markdown(out: Path, beside: Path) -> str | None:
    """All results in `out` for a file in the folder `beside`, or None where there are none."""
    pages, prefix = all_pages(out), Path(os.path.relpath(out.resolve(), beside)).as_posix()
    if not pages:
        return None
    text = markdown_overview([(page, f"{prefix}/{link}") for page, link in pages])
    return f"# Results\n\n{LEAD}\n\n{text}"
