"""Copy and reverse with a memory of half a segment (Figure 7)."""

from __future__ import annotations

from mnemo.data.tasks import Reverse
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Verdict
from mnemo.papers.rmt import published
from mnemo.papers.rmt.accuracy import COPY, REVERSE
from mnemo.papers.rmt.published import RMT, XL
from mnemo.papers.rmt.recipes import LONG_AS_PUBLISHED
from mnemo.papers.rmt.series import OURS, PAPER, Series, accuracy_table, by_segments, outdoes, solves

HALF = "a memory of half a segment"
HALF_COPY = Series(
    task="copy",
    make=COPY.make,
    size=24,
    counts=(6, 3),
    tiny=(4, 3),
    quoted=published.HALF_COPY,
    paper_steps=COPY.paper_steps,
    shorter=COPY.shorter,
    memory=lambda segment: max(1, segment // 2),
    models=(XL, RMT),
    words=HALF,
)
HALF_REVERSE = Series(
    task="reverse",
    make=REVERSE.make,
    size=24,
    counts=(4, 2),
    tiny=(4, 2),
    quoted=published.HALF_REVERSE,
    paper_steps=REVERSE.paper_steps,
    shorter=REVERSE.shorter,
    memory=lambda segment: max(1, segment // 2),
    models=(XL, RMT),
    words=HALF,
)
LONG_REVERSE = Series(
    task="reverse-120",
    make=lambda size, splits: Reverse(symbols=size, alphabet=8, **splits),
    size=120,
    counts=(2, 4, 6),
    tiny=(4, 2),
    quoted=published.LONG_REVERSE,
    paper_steps={2: 200_000, 4: 400_000, 6: 600_000},
    shorter=REVERSE.shorter,
    memory=lambda segment: min(60, segment),
    chance=1 / 8,
    models=(XL, RMT),
    as_published=LONG_AS_PUBLISHED,
    splits={"valid": 10_000, "test": 20_000},
    words="a memory of at most 60",
    budgets=("paper",),
)


def half_memory_cells(budget: Budget) -> list[Cell]:
    long = LONG_REVERSE.cells(budget) if budget in LONG_REVERSE.budgets else []
    return [*HALF_COPY.cells(budget), *HALF_REVERSE.cells(budget), *long]


def half_memory_verdicts(results: Results) -> list[Verdict]:
    return [
        solves(results, HALF_COPY, 6),
        outdoes(results, HALF_COPY, 6),
        solves(results, HALF_REVERSE, 4),
        outdoes(results, HALF_REVERSE, 4),
        solves(results, HALF_COPY, 3),
        solves(results, HALF_REVERSE, 2),
        outdoes(results, LONG_REVERSE, 4),
        outdoes(results, LONG_REVERSE, 6),
    ]


def half_memory_figures(results: Results) -> list[Figure]:
    return [
        figure
        for series in (HALF_COPY, HALF_REVERSE, LONG_REVERSE)
        for figure in by_segments(results, series, _half_title(series))
    ]


def _half_title(series: Series) -> str:
    return f"Half memory, {series.task}: accuracy by number of segments"


HALF_MEMORY = Experiment(
    name="rmt-half-memory",
    title="Copy and reverse with half the memory",
    paper=PAPER,
    covers=("Figure 7",),
    claim="RMT still solves copy and reverse with a memory of half a segment: it packs two symbols into each memory "
    "token. Transformer-XL loses accuracy.",
    cells=half_memory_cells,
    verdicts=half_memory_verdicts,
    figures=half_memory_figures,
    tables=lambda results: [
        accuracy_table(results, series, _half_title(series))
        for series in (HALF_COPY, HALF_REVERSE, LONG_REVERSE)
        if results.select(task=series.task)
    ],
    notes=(
        *OURS,
        "Reversed sequences of 120 symbols (the figure's third panel) are run at the paper budget only.",
    ),
)
