"""Two tasks that are not in the paper: multi-query associative recall, and a passkey hidden in noise.

The answer is a symbol from many segments ago, among many that are not needed.
"""

from __future__ import annotations

from mnemo.data.tasks import MultiQuery, Passkey
from mnemo.papers.experiment import Experiment
from mnemo.papers.rmt.published import BASELINE, RMT, XL
from mnemo.papers.rmt.recipes import LOOKUP
from mnemo.papers.rmt.series import CACHES, EMPTY, GRADIENT, GROWING, ONE_SEED, WRITTEN, Series, series_experiment

MULTI_QUERY = Series(
    task="multi-query",
    title="Multi-query associative recall",
    make=lambda size, splits: MultiQuery(pairs=size, queries=size, keys=32, values=16, **splits),
    size=8,
    counts=(4, 2, 1),
    tiny=(2, 2),
    chance=1 / 16,
    small=LOOKUP,
    shorter=lambda segment, size: [each for each in (2, 4) if each < size],
    models=(RMT, XL, BASELINE),
    seeds=ONE_SEED,
)
PASSKEY = Series(
    task="passkey",
    title="A passkey in noise",
    make=lambda size, splits: Passkey(length=size, digits=4, **splits),
    size=256,
    counts=(16, 8, 4, 2),
    tiny=(16, 2),
    shorter=lambda segment, size: [each for each in (32, 64, 128) if segment < each < size],
    memory=lambda segment: 8,
    models=(RMT, XL, BASELINE),
    splits={"train": 50_000},
    seeds=ONE_SEED,
)


def _experiment(name: str, series: Series, counts: tuple[int, ...], claim: str, *notes: str) -> Experiment:
    return series_experiment(
        name,
        [series],
        lambda budget: [*(series.solved(count) for count in counts), series.outdone(max(counts))],
        title=series.title,
        paper="Further experiments",
        covers=("not in a paper",),
        claim=claim,
        notes=(
            "Not in RMT's paper. Models, training and verdicts are those of its own tasks.",
            *notes,
            GROWING,
            f"small: 2 layers of width 128, one seed. {CACHES}",
            f"{GRADIENT}.",
            WRITTEN,
            EMPTY,
        ),
    )


EXPERIMENTS = [
    _experiment(
        "rmt-associative-recall",
        MULTI_QUERY,
        (2, 4),
        "RMT answers eight questions about eight pairs that it has read in earlier segments.",
        "Multi-query associative recall (Arora et al., 2023) separates recurrent models from attention.",
        "Every pair is asked for once. A model that knows the values but not their keys has a loss of at most "
        "log(8!) / 8 = 1.33 nats per answer while right answers are shown, as in training.",
    ),
    _experiment(
        "rmt-passkey",
        PASSKEY,
        (4, 8, 16),
        "RMT with 8 memory tokens keeps four digits through up to 16 segments of noise, beyond the reach of a cache of "
        "8 states a layer.",
        "256 tokens; in 16 segments the number stands up to 240 tokens before the question.",
    ),
]
