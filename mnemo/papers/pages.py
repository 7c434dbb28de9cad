"""Verdicts and report pages of experiments, made from their results."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.papers import every_experiment
from mnemo.papers.experiment import ABOUT_SELF_TEST, SELF_TEST, Budget, Cell, Experiment, Results, objects_of
from mnemo.papers.store import CELLS, RESULT, RESULTS, Found, grid_folder, load_grid
from mnemo.report.experiment_page import FILES, ExperimentPage, write_experiment
from mnemo.report.findings import Verdict

INDEX, REPORT = "index.html", "report.html"
SOURCE = f"{FILES}/source.json"
"""Next to a page: where the results are that it was made from."""
INCOMPLETE = (ArithmeticError, LookupError, ValueError)
"""Raised by verdicts, tables and figures if a result lacks a value, or has text or an empty list in its place."""
CORPUS_NAMES = {
    "wikitext-103": "WikiText-103",
    "wikitext-2": "WikiText-2",
    "ptb": "Penn Treebank",
    "lm1b": "One Billion Word",
}
"""Names of corpora that are written differently from their data folder."""
TEXTS_OF_JOBS = {"laptop-songs": "songs", "xl-train-sentences": "shuffled lines of WikiText-2"}
"""Texts that jobs make themselves."""


def verdicts_of(experiment: Experiment, found: Found) -> Sequence[Verdict]:
    """Verdicts on the results that have all values which verdicts need."""
    try:
        return _verdicts(experiment, found.results)
    except INCOMPLETE:
        # Leaving out the incomplete results means drawing all figures, which takes longer.
        return _verdicts(experiment, complete(experiment, found).results)


def _verdicts(experiment: Experiment, results: Results) -> Sequence[Verdict]:
    """A self-test has none: it says nothing about the claims."""
    return () if results.budget == "self-test" else experiment.verdicts(results)


def verdicts_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    fields = ("claim", "paper", "ours", "holds")
    return {"verdicts": [{name: getattr(each, name) for name in fields} for each in verdicts]}


def complete(experiment: Experiment, found: Found) -> Found:
    """Leave out, and name, results that lack values which verdicts, tables or figures need."""
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
    """Return the content of an experiment's page; results that lack a value are left out, and named."""
    try:
        return _with_content(experiment, found)
    except INCOMPLETE:
        return _with_content(experiment, complete(experiment, found))


def _with_content(experiment: Experiment, found: Found) -> ExperimentPage:
    results = found.results
    return replace(
        outline(experiment, found),
        verdicts=_verdicts(experiment, results),
        tables=experiment.tables(results),
        figures=experiment.figures(results),
        samples=experiment.samples(results),
    )


def outline(experiment: Experiment, found: Found) -> ExperimentPage:
    """The page without tables, figures and samples, which take longer.

    Notes are about the real experiment, so that a self-test has none.
    """
    results = found.results
    is_test = results.budget == "self-test"
    return ExperimentPage(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        covers=experiment.covers,
        claim=experiment.claim,
        budget=results.budget,
        data=measured_on(experiment, results),
        verdicts=verdicts_of(experiment, found),
        about_verdicts=SELF_TEST if is_test else "",
        notes=() if is_test else experiment.notes,
        facts=_facts(experiment, results),
        problems=found.problems,
        lead=f"{ABOUT_SELF_TEST} {experiment.claim}" if is_test else "",
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
    at_once = max((each.at_once for each in cells if each.at_once is not None), default=1)
    shared = f"; up to {at_once} cells shared the machine" if at_once > 1 else ""
    return [
        *facts,
        ("Hardware", " and ".join(hardware)),
        ("Versions", " and ".join(versions)),
        *([("Seeds", ", ".join(map(str, seeds)))] if seeds else []),
        ("Time", f"{sum(seconds):,.0f} s over all cells, {statistics.median(seconds):,.0f} s the median cell{shared}"),
    ]


def write_page(page: ExperimentPage, site: Path, budget: Budget, out: Path) -> Path:
    """`out`: where the results are, seen from the site, so that the index finds them after other commands."""
    folder = grid_folder(site, page.name, budget)
    path = write_experiment(page, folder, overview=f"../../{INDEX}")
    write_json(folder / SOURCE, {"results": os.path.relpath(out.resolve(), site.resolve())})
    return path


def has_results(out: Path, experiment: Experiment, budget: Budget) -> bool:
    """Whether a cell has a result; cells that have only begun have none."""
    grid = grid_folder(out, experiment.name, budget)
    return (grid / RESULTS).exists() or any((grid / CELLS).glob(f"*/{RESULT}"))


def _grids() -> Iterator[tuple[Experiment, Budget]]:
    return ((experiment, budget) for experiment in every_experiment().values() for budget in experiment.budgets)


def stored(out: Path) -> Iterator[tuple[Experiment, Found]]:
    """Every experiment and budget with results in `out`."""
    for experiment, budget in _grids():
        if has_results(out, experiment, budget):
            yield experiment, load_grid(grid_folder(out, experiment.name, budget), experiment, budget)


def shown(site: Path, out: Path) -> Iterator[tuple[str, Experiment, Found]]:
    """Every page of a site as a link from its index, and the results that it was made from.

    `out`: where to look for those of pages that do not say where they are.
    """
    for experiment, budget in _grids():
        page = grid_folder(site, experiment.name, budget)
        folders = [each for each in (_source(page, site, out), out) if has_results(each, experiment, budget)]
        if folders and (page / REPORT).exists():
            found = load_grid(grid_folder(folders[0], experiment.name, budget), experiment, budget)
            yield f"{page.relative_to(site).as_posix()}/{REPORT}", experiment, found


def _source(page: Path, site: Path, out: Path) -> Path:
    """Folder of the results that a page was made from; pages of earlier versions do not say it."""
    try:
        return site.resolve() / str(load_json(page / SOURCE).get("results"))
    except MnemoError:
        return out


def measured_on(experiment: Experiment, results: Results) -> str:
    """`enwik8 claim, measured on novels` where the text differs from the paper's; empty without a text."""
    ours = texts([each.cell for each in results.cells])
    papers = texts(experiment.cells("paper")) if "paper" in experiment.budgets else ours
    return ours if ours == papers or not papers else f"{papers} claim, measured on {ours}"


def texts(cells: Sequence[Cell]) -> str:
    """Corpora and tasks that the cells are trained on."""
    found = (
        name
        for cell in cells
        for name in ([TEXTS_OF_JOBS[cell.job]] if cell.job in TEXTS_OF_JOBS else _names(cell.settings))
    )
    return ", ".join(dict.fromkeys(found))


def _names(settings: Any) -> Iterator[str]:
    """Names in all objects of the settings that describe data."""
    for data in objects_of(settings, "DataConfig"):
        task, corpus = data.get("task"), str(data["corpus"])
        yield str(task["type"]).lower() if isinstance(task, Mapping) else CORPUS_NAMES.get(corpus, corpus)
