"""Associative retrieval at the published depth; a model that sees all pairs in one segment takes the same stages."""

from __future__ import annotations

from dataclasses import replace

from mnemo.papers.experiment import Budget
from mnemo.papers.gpu.text import BUDGETS, SEEDS
from mnemo.papers.judge import Claim, far_below
from mnemo.papers.rmt import published
from mnemo.papers.rmt.accuracy import AS_GOOD_IN_FIVE, CUT, RETRIEVAL
from mnemo.papers.rmt.published import BASELINE, RMT, XL, beside
from mnemo.papers.rmt.recipes import LOOKUP, RETRIEVAL_AS_PUBLISHED, at_published_size
from mnemo.papers.rmt.series import CACHES, PUBLISHED_WAY, series_experiment

STEPS, FIRST_STEPS = 6000, 2000
"""Of the last stage, four pairs, and of the first, two pairs; a stage ends when its loss is low enough."""
SERIES = replace(
    RETRIEVAL,
    counts=(5, 3, 2, 1),
    models=(RMT, XL, BASELINE),
    left_out=((XL, 1), (BASELINE, 2), (BASELINE, 3)),
    grows_in_one=True,
    splits={"train": 1_000_000},
    small=replace(
        at_published_size(RETRIEVAL_AS_PUBLISHED, LOOKUP), steps=STEPS, first_steps=FIRST_STEPS, eval_samples=1024
    ),
    seeds={"self-test": 1, "gpu": len(SEEDS)},
    budgets=BUDGETS,
)


def claims(budget: Budget) -> list[Claim]:
    return [
        SERIES.solved_in_one(),
        SERIES.solved(2),
        SERIES.solved(3),
        AS_GOOD_IN_FIVE,
        far_below(
            "The baseline without memory is far below RMT on retrieval in 5 segments (mean lower by 0.1 or more).",
            beside(published.RETRIEVAL, 5, BASELINE, RMT),
            SERIES.key(BASELINE, 5),
            SERIES.key(RMT, 5),
        ),
    ]


EXPERIMENT = series_experiment(
    "gpu-retrieval",
    [SERIES],
    claims,
    title="At the published depth: retrieval among 4 pairs",
    claim="A model that sees all pairs in one segment finds a value by its key; RMT and Transformer-XL do so, too, if "
    "pairs and question are cut into up to 5 segments.",
    covers=("Figure 4, retrieval",),
    budgets=BUDGETS,
    notes=(
        "The published 6 layers of width 64 with 4 heads of 32; the norm before each layer instead of after it, and "
        "wider first weights, as at budget small.",
        "No dropout, and ten times the published 100,000 training samples instead: in a trial on a CPU (one segment, "
        "two pairs, batches of 256), the loss fell below 0.1 nats within 300 steps without dropout, and was still near "
        "that of guessing among the two values (0.7) after 440 steps with dropout 0.1. At small, without dropout, RMT "
        "in 5 segments ended with a training loss of 0.0003 and a validation loss of 0.07.",
        f"Every model, also in one segment, first learns two pairs ({FIRST_STEPS:,} steps) and then four "
        f"({STEPS:,} steps) of {LOOKUP.batch:,} samples, Adam at {LOOKUP.lr:g} with a cosine to 0, bf16; a stage ends "
        f"early at {LOOKUP.first_goal:g} or {LOOKUP.goal:g} nats. Published: 400,000 to 1,000,000 steps of 32 on four "
        "pairs, Adam at 1e-4, fp32.",
        "Transformer-XL in one segment is the baseline, which is not trained twice.",
        "All 27 cells took 24 minutes of one H200, on which the last five models of gpu-lamemo were trained and scored "
        "at the same time (17 cells at once).",
        *CUT,
        CACHES,
        *PUBLISHED_WAY,
    ),
)
