"""The text or task that an experiment was measured on, and whether it is that of its paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mnemo.papers.experiment import Cell, Experiment, Results

NAMES = {
    "wikitext-103": "WikiText-103",
    "wikitext-2": "WikiText-2",
    "ptb": "Penn Treebank",
    "lm1b": "One Billion Word",
}
"""Names of corpora that are written differently from their data folder."""
JOBS = {"laptop-songs": "songs", "xl-train-sentences": "shuffled lines of WikiText-2"}
"""Texts that jobs make themselves."""


def measured_on(experiment: Experiment, results: Results) -> str:
    """`enwik8 claim, measured on novels` where the text differs from the paper's; empty without a text."""
    ours = texts([each.cell for each in results.cells])
    papers = texts(experiment.cells("paper")) if "paper" in experiment.budgets else ours
    return ours if ours == papers or not papers else f"{papers} claim, measured on {ours}"


def texts(cells: Sequence[Cell]) -> str:
    """Corpora and tasks that the cells are trained on."""
    found = (name for cell in cells for name in ([JOBS[cell.job]] if cell.job in JOBS else _names(cell.settings)))
    return ", ".join(dict.fromkeys(found))


def _names(settings: Any) -> Iterator[str]:
    """Names in all objects of the settings that describe data."""
    if isinstance(settings, list):
        for part in settings:
            yield from _names(part)
    elif isinstance(settings, Mapping):
        if settings.get("type") == "DataConfig":
            task, corpus = settings.get("task"), str(settings["corpus"])
            yield str(task["type"]).lower() if isinstance(task, Mapping) else NAMES.get(corpus, corpus)
        for part in settings.values():
            yield from _names(part)
