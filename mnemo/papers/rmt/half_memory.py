"""Copy and reverse with a memory of half a segment (Figure 7)."""

from __future__ import annotations

from dataclasses import replace

from mnemo.data.tasks import Reverse
from mnemo.papers.experiment import Budget
from mnemo.papers.judge import Claim
from mnemo.papers.rmt import published
from mnemo.papers.rmt.accuracy import COPY, REVERSE
from mnemo.papers.rmt.published import RMT, XL
from mnemo.papers.rmt.recipes import LONG_AS_PUBLISHED
from mnemo.papers.rmt.series import OURS, Series, series_experiment


def halved(series: Series, quoted: published.Quotes, counts: tuple[int, ...]) -> Series:
    return replace(
        series,
        title=f"Half memory, {series.task}",
        counts=counts,
        quoted=quoted,
        deep=(),
        memory=lambda segment: max(1, segment // 2),
        models=(XL, RMT),
        memory_text="a memory of half a segment",
    )


HALF_COPY = halved(COPY, published.HALF_COPY, (6, 3))
HALF_REVERSE = halved(REVERSE, published.HALF_REVERSE, (4, 2))
LONG_REVERSE = Series(
    task="reverse-120",
    title="Reverse 120 symbols",
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
    memory_text="a memory of at most 60",
    budgets=("paper",),
)


def claims(budget: Budget) -> list[Claim]:
    return [
        HALF_COPY.solved(6),
        HALF_COPY.outdone(6),
        HALF_REVERSE.solved(4),
        HALF_REVERSE.outdone(4),
        HALF_COPY.solved(3),
        HALF_REVERSE.solved(2),
        LONG_REVERSE.outdone(4),
        LONG_REVERSE.outdone(6),
    ]


EXPERIMENT = series_experiment(
    "rmt-half-memory",
    [HALF_COPY, HALF_REVERSE, LONG_REVERSE],
    claims,
    title="Copy and reverse with half the memory",
    covers=("Figure 7",),
    claim="RMT still solves copy and reverse with a memory of half a segment: it packs two symbols into each memory "
    "token. Transformer-XL loses accuracy.",
    notes=(*OURS, "Sequences of 120 symbols (the figure's third panel) are reversed at the paper budget only."),
)
