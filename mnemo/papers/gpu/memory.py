"""Transformer-XL against no memory, which also trains longer, and against Al-Rfou's transformer."""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import XL
from mnemo.model.positions import Learned
from mnemo.papers.experiment import Budget, Figure, Results
from mnemo.papers.figures import scores_by_measure
from mnemo.papers.gpu.text import Headline, at, enwik8_recipe, slots, test_score, text_row
from mnemo.papers.grid import BPC, Grid, Measure, Row
from mnemo.papers.judge import Better, Claim
from mnemo.papers.tables import Column, score
from mnemo.recipes.recipe import Recipe

LENGTH, BATCH, STEPS = 512, 22, 6000
"""Of segment and memory, as published, and of the training."""
LONGER = 1.25
"""Times the steps of a model without memory, whose steps are cheaper; the table shows the seconds of both."""
TESTED = (1024, 2048)
"""Longer memories of the test."""


def recipe(budget: Budget, memory: int, steps: int = STEPS) -> Recipe:
    return enwik8_recipe(budget, XL(length=slots(budget, memory)), segment=LENGTH, batch=BATCH, steps=steps)


def vanilla(budget: Budget) -> Recipe:
    found = recipe(budget, 0)
    return replace(found, model=replace(found.model, positions=Learned(length=found.train.segment)))


def longer(memory: int) -> Measure:
    return at(f"memory{memory}", f"bpc at memory {memory:,}")


def rows(budget: Budget) -> list[Row]:
    further = {f"memory{memory}": test_score(budget, memory=slots(budget, memory)) for memory in TESTED}
    return [
        text_row(
            budget,
            "memory",
            f"Transformer-XL, memory {LENGTH}",
            recipe(budget, LENGTH),
            0,
            paper="1.06",
            scores=further,
        ),
        text_row(budget, "none", "no memory, relative positions", recipe(budget, 0), 1),
        text_row(
            budget,
            "none, longer",
            f"no memory, {LONGER:g} times the steps",
            recipe(budget, 0, round(LONGER * STEPS)),
            2,
        ),
        text_row(budget, "vanilla", "no memory, Al-Rfou's learned positions", vanilla(budget), 3, paper="1.11"),
    ]


def claims(budget: Budget) -> list[Claim]:
    quoted = "1.06 against 1.11 bpc (12 layers)"
    return [
        Better("Transformer-XL is better than Al-Rfou's transformer of the same depth.", quoted, "memory", "vanilla"),
        Better("Transformer-XL is better than the same model without memory.", quoted, "memory", "none"),
        Better(
            f"It is better than the same model without memory that trains {LONGER:g} times as many steps.",
            "not in the paper",
            "memory",
            "none, longer",
        ),
    ]


def columns(budget: Budget) -> list[Column]:
    return [score(f"memory {memory:,}", longer(memory)) for memory in TESTED]


def figures(grid: Grid, results: Results) -> list[Figure]:
    only = replace(grid, rows=[row for row in grid.rows if row.key == "memory"])
    measures = {float(LENGTH): BPC, **{float(memory): longer(memory) for memory in TESTED}}
    return scores_by_measure(
        only,
        results,
        measures,
        slug="longer-memory",
        title="Longer memories in the test",
        x_label="memory",
        caption=f"The same weights, trained with a memory of {LENGTH}.",
    )


EXPERIMENT = Headline(
    name="gpu-xl",
    title="On enwik8: memory",
    paper="Transformer-XL",
    covers=("Table 2, the main claim",),
    claim="A memory of earlier segments makes a transformer better, also when the model without memory trains "
    f"{LONGER:g} times as many steps.",
    rows=rows,
    claims=claims,
    columns=columns,
    figures=figures,
    notes=(
        f"The size of the paper's 12-layer model (41M), {STEPS:,} of its 400,000 steps of {BATCH} x {LENGTH} symbols; "
        "learning rate 5e-4 instead of 2.5e-4.",
        "Al-Rfou's model is trained without their auxiliary losses, and tested segment by segment as the others.",
    ),
).experiment()
