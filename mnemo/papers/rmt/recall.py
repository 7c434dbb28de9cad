"""Two tasks of our own choice: multi-query associative recall, and a passkey hidden in noise.

Both ask for something that was said many segments ago, among much that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Callable

from mnemo.data.tasks import MultiQuery, Passkey
from mnemo.papers.experiment import Experiment, Results, Verdict
from mnemo.papers.rmt.published import BASELINE, RMT, XL
from mnemo.papers.rmt.recipes import LOOKUP
from mnemo.papers.rmt.series import (
    CACHES,
    EMPTY,
    GRADIENT,
    GROWING,
    WRITTEN,
    Series,
    accuracy_table,
    by_segments,
    outdoes,
    solves,
)

SEEDS = {"smoke": 1, "small": 1, "paper": 3}
MULTI_QUERY = Series(
    task="multi-query",
    make=lambda size, splits: MultiQuery(pairs=size, queries=size, keys=32, values=16, **splits),
    size=8,
    counts=(4, 2, 1),
    tiny=(2, 2),
    quoted={},
    chance=1 / 16,
    small=LOOKUP,
    shorter=lambda segment, size: [each for each in (2, 4) if each < size],
    models=(RMT, XL, BASELINE),
    seeds=SEEDS,
)
PASSKEY = Series(
    task="passkey",
    make=lambda size, splits: Passkey(length=size, digits=4, **splits),
    size=256,
    counts=(16, 8, 4, 2),
    tiny=(16, 2),
    quoted={},
    shorter=lambda segment, size: [each for each in (32, 64, 128) if segment < each < size],
    memory=lambda segment: 8,
    models=(RMT, XL, BASELINE),
    splits={"train": 50_000},
    seeds=SEEDS,
)


def _verdicts(series: Series, counts: tuple[int, ...]) -> Callable[[Results], list[Verdict]]:
    def verdicts(results: Results) -> list[Verdict]:
        solved = [solves(results, series, count) for count in counts]
        return [*solved, outdoes(results, series, max(counts))]

    return verdicts


def _experiment(name: str, series: Series, title: str, claim: str, counts: tuple[int, ...], *notes: str) -> Experiment:
    heading = f"{title}: accuracy by number of segments"
    return Experiment(
        name=name,
        title=title,
        paper="Beside the papers",
        covers=("not in the paper",),
        claim=claim,
        cells=series.cells,
        verdicts=_verdicts(series, counts),
        figures=lambda results: by_segments(results, series, heading),
        tables=lambda results: [accuracy_table(results, series, heading)],
        notes=(
            "Not in RMT's paper. Models, training and verdicts are those of its own tasks.",
            *notes,
            GROWING,
            f"At the small budget, models have 2 layers of width 128. {CACHES}",
            f"{GRADIENT}.",
            WRITTEN,
            EMPTY,
            "The small budget has one seed.",
        ),
    )


MULTI_QUERY_EXPERIMENT = _experiment(
    "rmt-associative-recall",
    MULTI_QUERY,
    "Multi-query associative recall",
    "RMT answers eight questions about eight pairs that it has read in earlier segments.",
    (2, 4),
    "Multi-query associative recall (Arora et al., 2023) separates recurrent models from attention.",
    "Every pair is asked for once. To know which values there are, and not whose, costs at most log(8!) / 8 = 1.33 "
    "nats an answer while right answers are shown, as in training: a model that settles little below that hardly tells "
    "the pairs apart.",
)
PASSKEY_EXPERIMENT = _experiment(
    "rmt-passkey",
    PASSKEY,
    "A passkey in noise",
    "RMT with 8 memory tokens keeps four digits through up to 16 segments of noise, beyond the reach of a cache of 8 "
    "states a layer.",
    (4, 8, 16),
    "256 tokens; in 16 segments the number stands up to 240 tokens before the question.",
)
