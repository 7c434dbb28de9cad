"""Longer memories than in training (Figure 5): targets of 64, memories of 64, 128, ... 640."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.lamemo.compare import BPC, PPL, Gain, Unit, by_seed, counted, gain, told, verdict
from mnemo.papers.lamemo.comparison import LIMITS, SMALLER, cell
from mnemo.papers.lamemo.models import LAMEMO, SEED, TRANSFORMER_XL
from mnemo.papers.lamemo.names import PAPER
from mnemo.papers.lamemo.trained import BEYOND, recipe_of
from mnemo.report.plots import line_figure, lines_over_seeds

MODELS = (LAMEMO, TRANSFORMER_XL)
TARGET = 64
ROWS = 128
"""That `small` scores side by side."""
MULTIPLES = tuple(range(1, 11))
SATURATED_FROM, SATURATED = 7, 0.005
"""From this multiple on, all further gain is below this share of the loss in nats."""


def unit_of(budget: Budget) -> Unit:
    return PPL if budget == "paper" else BPC


def target_of(budget: Budget) -> int:
    return 4 if budget == "smoke" else TARGET


def multiples_of(budget: Budget) -> tuple[int, ...]:
    return (1, 7, 10) if budget == "smoke" else MULTIPLES


def at(multiple: int) -> str:
    """The name of a score."""
    return f"m{multiple}"


def cells(budget: Budget) -> list[Cell]:
    seeds = 2 if budget == "small" else 1
    return [
        cell(model, SEED + number, recipe_of(budget, model, SEED + number), budget, _scores(budget))
        for number in range(seeds)
        for model in MODELS
    ]


def _scores(budget: Budget) -> dict[str, dict[str, Any]]:
    target, rows = target_of(budget), {"batch": ROWS} if budget == "small" else {}
    return {
        at(multiple): {"split": "test", "segment": target, "memory": multiple * target, **LIMITS[budget], **rows}
        for multiple in multiples_of(budget)
    }


def verdicts(results: Results) -> list[Verdict]:
    return [_always_lower(results), _growing_gap(results), *(_saturates(results, model) for model in MODELS)]


def _gains(results: Results) -> dict[int, Gain]:
    """LaMemo's over Transformer-XL at every multiple that is known of both."""
    unit, found = unit_of(results.budget), {}
    for multiple in multiples_of(results.budget):
        ahead, static = (by_seed(results, at(multiple), unit, model=model) for model in MODELS)
        difference = gain(ahead, static, unit)
        if difference is not None:
            found[multiple] = difference
    return found


def _always_lower(results: Results) -> Verdict:
    claim, paper = "LaMemo is better than Transformer-XL at every memory length.", "at every m from 1 to 10 (Figure 5)"
    gains = _gains(results)
    if not gains:
        return verdict(results, claim, paper, None, None)
    worst = min(gains, key=lambda multiple: gains[multiple].mean)
    missing = len(multiples_of(results.budget)) - len(gains)
    ours = f"least at m = {worst}: {gains[worst]}" + (f"; {missing} lengths not measured" if missing else "")
    said = {each.holds for each in gains.values()}
    return verdict(results, claim, paper, ours, False if False in said else None if missing or None in said else True)


def _growing_gap(results: Results) -> Verdict:
    claim, paper = "The gap grows with the memory.", "the gap increases with longer contexts (Figure 5)"
    gains, (first, *_, last) = _gains(results), multiples_of(results.budget)
    if first not in gains or last not in gains:
        return verdict(results, claim, paper, None, None)
    unit, near, far = unit_of(results.budget), gains[first].differences, gains[last].differences
    growth = [late - early for early, late in zip(near, far, strict=True)]
    ours = f"{unit.tell(near)} at m = {first}, {unit.tell(far)} {unit.name} at m = {last} ({counted(len(near))})"
    mean, needed = fmean(growth), unit.needed(growth, fmean(gains[first].worse))
    if abs(mean) < needed:
        ours += f"; less than {needed:.{unit.digits}f} decides nothing"
        return verdict(results, claim, paper, ours, None)
    return verdict(results, claim, paper, ours, mean > 0)


def _saturates(results: Results, model: str) -> Verdict:
    claim = f"{model} gains less than {SATURATED:.1%} in loss from a memory beyond {SATURATED_FROM} targets."
    paper = "saturates when m is over 7 (Figure 5)"
    first, *_, last = multiples_of(results.budget)
    shortest, before, after = (
        results.values(f"scores.{at(multiple)}.loss", model=model) for multiple in (first, SATURATED_FROM, last)
    )
    if not before or len(before) != len(after) or len(before) != len(shortest):
        return verdict(results, claim, paper, None, None)
    for multiple, losses in ((SATURATED_FROM, before), (last, after)):
        worse = sum(losses) / sum(shortest) - 1
        if worse > SATURATED:
            ours = f"nothing to saturate: {worse:.1%} more loss with a memory of {multiple} targets than of {first}"
            return verdict(results, claim, paper, ours, None)
    share = 1 - sum(after) / sum(before)
    return verdict(results, claim, paper, f"{share:.2%} from m = {SATURATED_FROM} to {last}", share < SATURATED)


def figures(results: Results) -> list[Figure]:
    unit = unit_of(results.budget)
    points = [
        (model, float(multiple), value)
        for model in MODELS
        for multiple in multiples_of(results.budget)
        for value in by_seed(results, at(multiple), unit, model=model).values()
    ]
    if not points:
        return []
    caption = (
        f"Targets of {target_of(results.budget)}; the same weights at every memory length; the band spans the seeds."
    )
    lines = lines_over_seeds(points)
    return [
        line_figure(
            "extrapolation", "Longer memories (Figure 5)", caption, lines, x_label="m", y_label=f"test {unit.name}"
        )
    ]


def tables(results: Results) -> list[Table]:
    unit, target = unit_of(results.budget), target_of(results.budget)
    rows = [
        (multiple, multiple * target, *(told(results, at(multiple), unit, model=model) for model in MODELS))
        for multiple in multiples_of(results.budget)
    ]
    headers = ("m", "memory", *(f"{model}, test {unit.name}" for model in MODELS))
    caption = "The paper shows this as a figure, without numbers."
    return [Table("Scores by memory length", headers, rows, caption)] if results.cells else []


EXTRAPOLATION = Experiment(
    name="lamemo-extrapolation",
    title="Longer memories than in training",
    paper=PAPER,
    covers=("Figure 5",),
    claim="With targets of 64 and memories of 64 m, LaMemo stays below Transformer-XL, by more the longer the "
    "memory, and both stop gaining beyond m = 7.",
    cells=cells,
    verdicts=verdicts,
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
