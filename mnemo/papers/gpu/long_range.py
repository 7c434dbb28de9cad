"""Long memories in all, a sixth and none of the layers."""

from __future__ import annotations

from dataclasses import replace

from mnemo.papers.experiment import Budget
from mnemo.papers.gpu.text import SEEDS, Headline, test_score
from mnemo.papers.grid import Row
from mnemo.papers.judge import Better, Claim
from mnemo.papers.long_range.arrangement import (
    MEMORY_HELPS,
    PAPER,
    PUBLISHED,
    SIXTH_IS_ENOUGH,
    as_good_as_all,
)
from mnemo.papers.long_range.grids import (
    ALL,
    NONE,
    SIXTH,
    SIXTH_FIRST,
    SIXTH_LAST,
    Scale,
    novels,
    toy,
)
from mnemo.papers.tables import Column, against
from mnemo.recipes.recipe import DataConfig
from mnemo.recipes.transformer_xl import ENWIK8_SYMBOLS

STEPS = 4000
LONG, SHORT = 1024, 64
LAYOUTS = (ALL, SIXTH, SIXTH_LAST, SIXTH_FIRST, NONE)


def scale(budget: Budget) -> Scale:
    if budget == "self-test":
        return toy()
    recipe = novels(STEPS)
    on_enwik8 = replace(
        recipe,
        model=replace(recipe.model, vocab_size=ENWIK8_SYMBOLS),
        data=DataConfig(corpus="enwik8", drop_last=True),
    )
    return Scale(recipe=on_enwik8, long=LONG, short=SHORT, seeds=SEEDS, score=test_score(budget))


def rows(budget: Budget) -> list[Row]:
    return [scale(budget).row(layout, PUBLISHED.get(layout, "-")) for layout in LAYOUTS]


def claims(budget: Budget) -> list[Claim]:
    return [
        MEMORY_HELPS,
        SIXTH_IS_ENOUGH,
        as_good_as_all(
            "Long memories in the last sixth of the layers are as good as in all.",
            "4 of 24: in Figure 3, without a number; 3 of 18 on WikiText-103: 18.6 against 18.3 ppl",
            SIXTH_LAST,
        ),
        Better(
            "A sixth of the layers, the first ones, is worse than the same number interleaved.",
            "4 of 24: significantly worse (Figure 3)",
            SIXTH.key,
            SIXTH_FIRST.key,
        ),
    ]


def columns(budget: Budget) -> list[Column]:
    return [against("nats against all", ALL.key)]


EXPERIMENT = Headline(
    name="gpu-long-range",
    title="On enwik8: long memories in a few layers",
    paper=PAPER,
    covers=("Figure 3, the main claim",),
    claim="Long memories in a sixth of the layers are as good as in all, if they are interleaved or last.",
    rows=rows,
    claims=claims,
    columns=columns,
    notes=(
        "12 layers of width 256 instead of 24 of width 1,024: a sixth is two layers. Memories of 1,024 and 64 instead "
        f"of 2,304 (6,000 in the test) and 128, {STEPS:,} steps of 128 x 128 symbols; the paper does not state its "
        "number of steps.",
        "Norms come before the branches, queries and keys are normalised, squared ReLU instead of ReLU, separate "
        "softmax weights, output projections that start at zero, and Muon trains the matrices at a rate that falls in "
        "a line, as in the same experiment on novels, which has 900 steps; no dropout, since no symbol is read twice.",
    ),
).experiment()
