"""Transformer-XL against no memory, also after the same time, and against Al-Rfou's transformer."""

from __future__ import annotations

from dataclasses import replace

from mnemo.memory import XL
from mnemo.model.positions import Learned
from mnemo.papers.experiment import Budget, Cell, Figure, Results, Table
from mnemo.papers.figures import scores_by_measure
from mnemo.papers.gpu import equal_time
from mnemo.papers.gpu.text import ADAM, Headline, at, enwik8_recipe, slots, test_score, text_row
from mnemo.papers.grid import BPC, Grid, Measure, Row
from mnemo.papers.judge import Better, Claim
from mnemo.papers.long_range.measuring import timing_cell
from mnemo.papers.tables import Column, score
from mnemo.recipes.recipe import Recipe

LENGTH, BATCH, STEPS = 512, 22, 6000
"""Of segment and memory, as published, and of the training."""
MEMORY, NONE, AS_LONG, VANILLA = "memory", "none", "none, as long", "vanilla"
WITH_MEMORY, NO_MEMORY = f"Transformer-XL, memory {LENGTH}", "no memory, relative positions"
TESTED = (1024, 2048)
"""Longer memories of the test."""


def recipe(budget: Budget, memory: int) -> Recipe:
    return enwik8_recipe(budget, XL(length=slots(budget, memory)), segment=LENGTH, batch=BATCH, steps=STEPS)


def vanilla(budget: Budget) -> Recipe:
    found = recipe(budget, 0)
    return replace(found, model=replace(found.model, positions=Learned(length=found.train.segment)))


def longer(memory: int) -> Measure:
    return at(f"memory{memory}", f"bpc at memory {memory:,}")


def speed(budget: Budget) -> list[Cell]:
    """Of training with and without memory: a step without takes less time."""
    updates, rounds = (1, 1) if budget == "self-test" else (50, 5)
    recipes = {MEMORY: recipe(budget, LENGTH), NONE: recipe(budget, 0)}
    return [timing_cell(equal_time.SPEED, recipes, updates=updates, rounds=rounds)]


def as_long(row: Row) -> Row:
    """The same model, trained for the time of the one with memory."""
    return replace(
        row,
        settings=lambda seed: {**row.settings(seed), "model": NONE, "instead_of": MEMORY},
        job=equal_time.JOB,
        after=(equal_time.SPEED,),
    )


def rows(budget: Budget) -> list[Row]:
    further = {f"memory{memory}": test_score(budget, memory=slots(budget, memory)) for memory in TESTED}
    return [
        text_row(
            budget,
            MEMORY,
            WITH_MEMORY,
            recipe(budget, LENGTH),
            0,
            paper="1.06",
            scores=further,
        ),
        text_row(budget, NONE, NO_MEMORY, recipe(budget, 0), 1),
        as_long(text_row(budget, AS_LONG, "no memory, steps for the same time", recipe(budget, 0), 2)),
        text_row(budget, VANILLA, "no memory, Al-Rfou's learned positions", vanilla(budget), 3, paper="1.11"),
    ]


def claims(budget: Budget) -> list[Claim]:
    quoted = "1.06 against 1.11 bpc (12 layers)"
    other = "1.06 against 1.11 bpc of Al-Rfou's model (12 layers)"
    return [
        Better("Transformer-XL is better than Al-Rfou's transformer of the same depth.", quoted, MEMORY, VANILLA),
        Better("Transformer-XL is better than the same model without memory.", other, MEMORY, NONE),
        Better(
            "It is better than the same model without memory that trains for the same time.",
            "not in the paper",
            MEMORY,
            AS_LONG,
        ),
    ]


def columns(budget: Budget) -> list[Column]:
    return [*(score(f"memory {memory:,}", longer(memory)) for memory in TESTED), Column("steps", _steps)]


def _steps(grid: Grid, results: Results, row: Row) -> str:
    found = (each.values.get("steps") for _, each in grid.found(results, row))
    return ", ".join(dict.fromkeys(f"{steps:,}" for steps in found if steps is not None))


def speeds(results: Results) -> list[Table]:
    """What the steps of the row AS_LONG follow from; none before speeds are measured."""
    found = results.one(equal_time.SPEED)
    if found is None:
        return []
    steps, ratio = recipe(results.budget, LENGTH).train.steps, equal_time.speed_ratio(found.values, NONE, MEMORY)
    models = {MEMORY: (WITH_MEMORY, steps), NONE: (NO_MEMORY, equal_time.equal_steps(ratio, steps))}
    return [
        Table(
            title="Steps for the same time",
            headers=("model", "symbols per second, alone on the GPU", "steps"),
            rows=[
                (label, f"{equal_time.tokens_per_second(found.values, key):,.0f}", f"{count:,}")
                for key, (label, count) in models.items()
            ],
            caption="Speeds of training, measured while no other cell ran. Without memory it is "
            f"{ratio:.3f} times as fast, so that {ratio:.3f} x {steps:,} steps take the same time.",
        )
    ]


def figures(grid: Grid, results: Results) -> list[Figure]:
    only = replace(grid, rows=[row for row in grid.rows if row.key == MEMORY])
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
    claim="A memory of earlier segments makes a transformer better, also when the model without memory trains for the "
    "same time.",
    first=speed,
    rows=rows,
    claims=claims,
    columns=columns,
    figures=figures,
    tables=speeds,
    notes=(
        f"The size of the paper's 12-layer model (41M), {STEPS:,} of its 400,000 steps of {BATCH} x {LENGTH} symbols; "
        "learning rate 5e-4 instead of 2.5e-4.",
        "Steps for the same time: updates with and without memory are timed first, alone on the GPU; the number of "
        "steps is multiplied by the ratio of the two speeds.",
        "Al-Rfou's model is trained without their auxiliary losses, and tested segment by segment as the others.",
        ADAM,
    ),
).experiment()
