"""Longer memories than in training (Figure 5): targets of 64, memories of 64, 128, ... 640."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from mnemo.papers.experiment import Budget, Experiment, Figure, Results, Table
from mnemo.papers.figures import scores_by_measure
from mnemo.papers.grid import BPC, PPL, Grid, Measure
from mnemo.papers.judge import Better, Claim, Every, Exceeds, Gain, Observed, Outcome, judge
from mnemo.papers.lamemo.comparison import LIMITS, SMALLER, trained_row
from mnemo.papers.lamemo.models import LAMEMO, PAPER, TRANSFORMER_XL
from mnemo.papers.lamemo.trained import BEYOND, recipe_of
from mnemo.papers.tables import grid_table, label, score

MODELS = (LAMEMO, TRANSFORMER_XL)
TARGET = 64
ROWS = 128
"""That `small` scores side by side."""
MULTIPLES = tuple(range(1, 11))
SATURATED_FROM, SATURATED = 7, 0.005
"""From this multiple on, all further gain is below this share of the loss in nats."""


def target_of(budget: Budget) -> int:
    return 4 if budget == "self-test" else TARGET


def multiples_of(budget: Budget) -> tuple[int, ...]:
    return (1, 7, 10) if budget == "self-test" else MULTIPLES


def unit_of(budget: Budget) -> Measure:
    return PPL if budget == "paper" else BPC


def at(budget: Budget, multiple: int) -> Measure:
    """The test loss with a memory of this many targets."""
    unit = unit_of(budget)
    return replace(unit, key=f"scores.m{multiple}.loss", unit=f"{unit.unit} at m = {multiple}")


def grid(budget: Budget) -> Grid:
    num_seeds = 2 if budget == "small" else 1
    rows = [trained_row(model, recipe_of(budget, model), budget, num_seeds, _scores(budget)) for model in MODELS]
    return Grid(rows=rows, measure=unit_of(budget))


def _scores(budget: Budget) -> dict[str, dict[str, Any]]:
    target, rows = target_of(budget), {"batch": ROWS} if budget == "small" else {}
    return {
        f"m{multiple}": {"split": "test", "segment": target, "memory": multiple * target, **LIMITS[budget], **rows}
        for multiple in multiples_of(budget)
    }


def claims(budget: Budget) -> list[Claim]:
    multiples = multiples_of(budget)
    near, far = (Gain(*MODELS, at(budget, multiple)) for multiple in (multiples[0], multiples[-1]))
    return [
        Every(
            "LaMemo is better than Transformer-XL at every memory length.",
            "at every m from 1 to 10 (Figure 5)",
            tuple(Better("", "", *MODELS, at(budget, multiple)) for multiple in multiples),
        ),
        Exceeds("The gap grows with the memory.", "the gap increases with longer contexts (Figure 5)", far, near),
        *(_saturates(model) for model in MODELS),
    ]


def _saturates(model: str) -> Observed:
    claim = f"{model} gains less than {SATURATED:.1%} in loss from a memory beyond {SATURATED_FROM} targets."
    return Observed(claim, "saturates when m is over 7 (Figure 5)", partial(_late_gain, model=model))


def _late_gain(results: Results, *, model: str) -> Outcome | None:
    first, *_, last = multiples_of(results.budget)
    shortest, before, after = (
        list(grid(results.budget).by_seed(results, model, at(results.budget, multiple)).values())
        for multiple in (first, SATURATED_FROM, last)
    )
    if not before or len(before) != len(after) or len(before) != len(shortest):
        return None
    for multiple, losses in ((SATURATED_FROM, before), (last, after)):
        worse = sum(losses) / sum(shortest) - 1
        if worse > SATURATED:
            ours = f"nothing to saturate: {worse:.1%} more loss with a memory of {multiple} targets than of {first}"
            return Outcome(ours, None, len(before))
    share = 1 - sum(after) / sum(before)
    return Outcome(f"{share:.2%} from m = {SATURATED_FROM} to {last}", share < SATURATED, len(before))


def figures(results: Results) -> list[Figure]:
    return scores_by_measure(
        grid(results.budget),
        results,
        {float(multiple): at(results.budget, multiple) for multiple in multiples_of(results.budget)},
        slug="extrapolation",
        title="Longer memories (Figure 5)",
        x_label="m",
        caption=f"Targets of {target_of(results.budget)}; the same weights at every memory length.",
    )


def tables(results: Results) -> list[Table]:
    columns = (score(f"m = {multiple}", at(results.budget, multiple)) for multiple in multiples_of(results.budget))
    return grid_table(
        grid(results.budget),
        results,
        label("model"),
        *columns,
        title=f"Test {unit_of(results.budget).unit} by memory length",
        caption=f"Memories of m x {target_of(results.budget)}. The paper shows this as a figure, without numbers.",
    )


EXTRAPOLATION = Experiment(
    name="lamemo-extrapolation",
    title="Longer memories than in training",
    paper=PAPER,
    covers=("Figure 5",),
    claim="With targets of 64 and memories of 64 m, LaMemo stays below Transformer-XL, by more the longer the "
    "memory, and both stop gaining beyond m = 7.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, claims(results.budget)),
    figures=figures,
    tables=tables,
    notes=(
        "Where segments are shorter than in training, memory rows look at exactly what is new on their right; the "
        "published code looks at as many positions as the current segment has. With segments of one length it is the "
        "same.",
        "small: bytes of novels, trained with segment and memory of 128; two seeds.",
        BEYOND,
        SMALLER,
    ),
)
