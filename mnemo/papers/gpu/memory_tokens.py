"""Memory tokens that are written and read, that are only read, and a cache of hidden states."""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import XL as Cache
from mnemo.papers.experiment import Budget
from mnemo.papers.gpu.text import ADAM, Headline, enwik8_recipe, slots, text_row
from mnemo.papers.grid import Row
from mnemo.papers.judge import AsGood, Better, Claim, Gain
from mnemo.papers.rmt.recipes import remembering
from mnemo.papers.rmt.series import PAPER
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.rmt import BASELINE, ENWIK8, LANGUAGE, MT, RMT, XL

SEGMENT, BATCH, STEPS, DIM = 128, 64, 12_000, 256
STD = 0.3
"""Of the first memory tokens."""
NONE = "none"


def recipe(budget: Budget, kind: str = "", memory: int = 0) -> Recipe:
    found = enwik8_recipe(budget, Cache(length=0), segment=SEGMENT, batch=BATCH, steps=STEPS, dim=DIM)
    model = remembering(found.model, kind, slots(budget, memory), STD)
    return replace(found, model=model, train=replace(found.train, bptt=int(kind == RMT)))


def quoted(kind: str, memory: int) -> str:
    """The paper's bits per character; of RMT with gradient over one earlier segment."""
    return LANGUAGE[ENWIK8, SEGMENT, kind, memory][1 if kind == RMT else 0]


def rows(budget: Budget) -> list[Row]:
    return [
        text_row(budget, NONE, "no memory", recipe(budget), 1, paper=quoted(BASELINE, 0)),
        text_row(budget, "slots", "Transformer-XL, 40 slots", recipe(budget, XL, 40), 0, paper=quoted(XL, 40)),
        text_row(budget, "rmt 10", "RMT, 10 tokens", recipe(budget, RMT, 10), 4, paper=quoted(RMT, 10)),
        text_row(budget, "rmt 5", "RMT, 5 tokens", recipe(budget, RMT, 5), 2, paper=quoted(RMT, 5)),
        text_row(budget, "mt 10", "MT, 10 tokens that are only read", recipe(budget, MT, 10), 3),
    ]


def claims(budget: Budget) -> list[Claim]:
    none, cached, five, ten = quoted(BASELINE, 0), quoted(XL, 40), quoted(RMT, 5), quoted(RMT, 10)
    return [
        Better("RMT with 10 memory tokens is better than no memory.", f"{ten} against {none} bpc", "rmt 10", NONE),
        AsGood(
            "RMT with 5 memory tokens is as good as Transformer-XL with 40 slots.",
            f"{five} against {cached} bpc",
            "rmt 5",
            "slots",
            Gain("slots", NONE),
        ),
        Better(
            "Memory tokens that are written are better than those that are only read.",
            "on WikiText-103: 25.92 against 29.63 ppl",
            "rmt 10",
            "mt 10",
        ),
    ]


EXPERIMENT = Headline(
    name="gpu-rmt",
    title="On enwik8: memory tokens",
    paper=PAPER,
    covers=("Table 3, the main claim",),
    claim="A few memory tokens do as much as a cache of 40 slots in every layer.",
    rows=rows,
    claims=claims,
    notes=(
        f"12 layers of width {DIM} instead of 512, segments of {SEGMENT}, {STEPS:,} steps of {BATCH} x {SEGMENT} "
        "symbols, learning rate 5e-4 instead of 2.5e-4; gradient over one earlier segment, first memory tokens with a "
        f"standard deviation of {STD:g}.",
        ADAM,
    ),
).experiment()
