"""What the demo's page says first: one sentence and a bar chart, or that too little was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mnemo.cli.demo_training import NUM_SYMBOLS, RECALL_RUNS
from mnemo.report.figure import Figure
from mnemo.report.number_text import percent
from mnemo.report.page_template import Headline
from mnemo.report.run_figures import accuracies, grouped
from mnemo.report.runs import Run

TITLE = "What a memory is worth"
LEAD = (
    "First, one small model with and without memory on a task that needs the previous segment: repeat what it showed. "
    "Next, every kind of memory on a short version of that task. "
    "Then a byte model that is trained on the source text of this machine's own Python, scored with shorter and longer "
    "memories, and writes."
)
VISIBLE = 0.1
"""Difference between the shares of right answers from which on the demo shows what memory is for."""


def headline(runs: Sequence[Run], cuts: Sequence[str]) -> Headline:
    """The shares of right answers with and without memory, computed from the first two runs; `cuts` follow as notes."""
    chosen = [run for run in runs if run.name in RECALL_RUNS]
    shares = [run.results.scores[-1].accuracy for run in chosen if run.results.scores]
    if len(shares) < len(RECALL_RUNS) or None in shares:
        return Headline("The models were not trained", None, tuple(cuts))
    with_memory, without = (share or 0.0 for share in shares)
    words = f"With memory: {percent(with_memory)} right; without: {percent(without)}"
    if with_memory - without < VISIBLE:
        steps = max(run.last_step for run in chosen)
        return Headline("Too little was trained to show anything", None, (f"{words}, after {steps:,} steps.", *cuts))
    return Headline(words, _bars(chosen), tuple(cuts))


def _bars(chosen: Sequence[Run]) -> Figure | None:
    (group,) = grouped(chosen)
    figure = accuracies(group)
    if figure is None:
        return None
    caption = (
        "Share of the symbols of the previous segment that the model repeats correctly, in sequences that it was not "
        f"trained on. Guessing gives one of {NUM_SYMBOLS}."
    )
    return replace(figure, title="Right answers of the same small model with and without memory", caption=caption)
