"""LaMemo against Transformer-XL and no memory, with the published dropout; longer memories in the test; samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mnemo.memory import XL, AnyMemory, Lookahead
from mnemo.papers.experiment import Budget, Cell, CellResult, Figure, Results
from mnemo.papers.figures import scores_by_measure
from mnemo.papers.gpu.text import ADAM, Headline, at, enwik8_recipe, slots, test_score, text_row
from mnemo.papers.grid import Grid, Measure, Row
from mnemo.papers.judge import Better, Claim, Every, Within
from mnemo.papers.lamemo import samples
from mnemo.papers.lamemo.models import PAPER
from mnemo.papers.tables import Column, score
from mnemo.recipes.recipe import Recipe

LENGTH, BATCH, STEPS = 128, 88, 4500
"""Of segment and memory, and of the training."""
TARGET = 64
MULTIPLES = (1, 2, 3, 4, 6, 8, 10)
"""Memories of the test, in targets of 64 symbols."""
BROKEN = 3.0
"""Nats of a model that no longer predicts: the authors' code without dropout has 3.5 (5 bpc) at m = 10."""

STILL_PREDICTS = "With the published dropout, LaMemo still predicts after a memory of 10 targets."

SAMPLED = ("lamemo", "xl")
"""Rows that write samples, with their last seed: where a grid is continued on another machine, the weights of earlier
seeds may be missing."""
SAMPLES = "-samples"
"""Appended to the name of a trained cell."""


def recipe(budget: Budget, memory: AnyMemory) -> Recipe:
    return enwik8_recipe(budget, memory, segment=LENGTH, batch=BATCH, steps=STEPS)


def multiple(number: int) -> Measure:
    return at(f"m{number}", f"bpc at m = {number}")


def _longer(budget: Budget) -> dict[str, dict[str, Any]]:
    target = 4 if budget == "self-test" else TARGET
    return {f"m{number}": test_score(budget, segment=target, memory=number * target) for number in MULTIPLES}


def rows(budget: Budget) -> list[Row]:
    length = slots(budget, LENGTH)
    ahead = Lookahead(length=length, first_bias="xavier")
    scores = _longer(budget)
    return [
        text_row(budget, "none", "no memory", recipe(budget, XL(length=0)), 1, paper="1.240"),
        text_row(budget, "xl", "Transformer-XL", recipe(budget, XL(length=length)), 0, paper="1.128", scores=scores),
        text_row(budget, "lamemo", "LaMemo", recipe(budget, ahead), 4, paper="1.107", scores=scores),
        text_row(
            budget,
            "detached",
            'LaMemo, alpha="detached"',
            recipe(budget, replace(ahead, alpha="detached")),
            2,
            scores=scores,
        ),
    ]


def sample_cells(budget: Budget) -> list[Cell]:
    """Samples as in the paper: memory 512, distances clamped. In bytes, so four times as many tokens."""
    settings = samples.SETTINGS | {"tokens": 4 * samples.TOKENS, "clamp": 2 * LENGTH - 1}
    if budget == "self-test":
        settings = samples.SELF_TEST
    trained = [row.cell(row.seeds[-1]) for row in rows(budget) if row.key in SAMPLED]
    return [
        Cell(
            name=cell.name + SAMPLES,
            job="lamemo-samples",
            settings=settings | {"trained": cell.name, "training": cell.fingerprint},
            labels=cell.labels,
            after=(cell.name,),
        )
        for cell in trained
    ]


def samples_by_model(results: Results) -> dict[str, CellResult]:
    """Cells that have written samples, by the label of their model."""
    labels = {row.cell_name(row.seeds[-1]) + SAMPLES: row.label for row in rows(results.budget)}
    found = {labels[each.cell.name]: each for each in results.cells if each.cell.name in labels}
    return {label: each for label, each in found.items() if each.values}


def claims(budget: Budget) -> list[Claim]:
    quoted = "none 1.240, Transformer-XL 1.128, LaMemo 1.107 bpc (41M parameters)"
    return [
        Better("LaMemo is better than no memory.", quoted, "lamemo", "none"),
        Better("LaMemo is better than Transformer-XL.", quoted, "lamemo", "xl"),
        Every(
            "LaMemo is better than Transformer-XL with every memory of 1 to 10 targets.",
            "at every m from 1 to 10 (Figure 5)",
            tuple(Better("", "", "lamemo", "xl", multiple(number)) for number in MULTIPLES),
        ),
        Within(
            STILL_PREDICTS,
            "Figure 5",
            ("lamemo",),
            0.0,
            BROKEN,
            multiple(MULTIPLES[-1]),
        ),
        Better(
            "Without gradient through alpha, LaMemo is better than Transformer-XL.",
            "not in the paper",
            "detached",
            "xl",
        ),
    ]


def columns(budget: Budget) -> list[Column]:
    return [score(f"m = {number}", multiple(number)) for number in MULTIPLES]


def figures(grid: Grid, results: Results) -> list[Figure]:
    return scores_by_measure(
        grid,
        results,
        {float(number): multiple(number) for number in MULTIPLES},
        slug="extrapolation",
        title="Longer memories than in training",
        x_label="m",
        caption=f"Targets of {TARGET}, memories of m x {TARGET}; the same weights at every length.",
    )


EXPERIMENT = Headline(
    name="gpu-lamemo",
    title="On enwik8: memory that looks ahead",
    paper=PAPER,
    covers=("Table 2, the main claim", "Figure 5", "Tables 6 and 7"),
    claim="LaMemo is better than Transformer-XL and than no memory, also with memories longer than in training.",
    rows=rows,
    claims=claims,
    columns=columns,
    figures=figures,
    last=sample_cells,
    tables=lambda results: samples.tables(samples_by_model(results)),
    samples=lambda results: samples.samples(samples_by_model(results)),
    notes=(
        f"The paper's 12 layers of width 512, segment and memory {LENGTH} instead of 512, {STEPS:,} steps of {BATCH} x "
        f"{LENGTH} symbols instead of 100,000, learning rate 5e-4 instead of 2.5e-4.",
        "Dropout 0.1 on the sinusoids too, with a mask for each direction, and the wider first bias of positions "
        "ahead, as in the authors' code.",
        f"Samples: {samples.PROMPTS} prompts of {samples.PROMPT} symbols, spread evenly over the test set, memory "
        f"{samples.MEMORY}, distances clamped at the largest of training, top-p {samples.TOP_P}, last seed. "
        "They are shown, not judged: how much of them repeats depends on how many words they have.",
        ADAM,
    ),
).experiment()
