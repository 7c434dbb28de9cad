"""Table 8: recurrence against longer segments that take the same GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from mnemo.bench.timing import allocated
from mnemo.config import from_json, to_json
from mnemo.cost.training_cost import activation_bytes, state_row_bytes
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json, write_json
from mnemo.papers.experiment import Budget, Cell, Experiment, Figure, Results, Table, Verdict
from mnemo.papers.jobs import Place, job, train_here, training_cell
from mnemo.papers.xl.ablation import BY_NAME, SEARCHED, recipe_of
from mnemo.papers.xl.attention_length import found_columns, ppl, search_cell, searches
from mnemo.papers.xl.comparing import Measured, judged, lower, shown, spread, undecided
from mnemo.papers.xl.recipes import seeded, seeds
from mnemo.recipes.recipe import Recipe
from mnemo.report.plots import bar_figure
from mnemo.training.training_speed import training_speed

FIT, TRAIN_FITTED = "xl-fit-length", "xl-train-fitted"
FOUND = "length.json"
STEP = 4
"""Lengths are found to so many tokens, as the paper's seem to be."""
LONGEST = 4
"""Times the reference's length."""


class Row(NamedTuple):
    name: str
    loss: str
    paper_length: int
    paper_initial: float
    paper_best: float
    paper_attention: int


RECURRENT = (Row("xl", "full", 128, 27.02, 26.77, 500), Row("half", "half", 128, 28.69, 28.33, 460))
FITTED = (Row("no-memory", "full", 176, 28.43, 27.98, 400), Row("no-memory-half", "half", 172, 28.83, 28.83, 120))
"""Without recurrence, at the length that takes as much memory as the recurrent row of the same loss."""


def cells(budget: Budget) -> list[Cell]:
    made = []
    for row in RECURRENT:
        for seed in seeds(budget):
            recipe = seeded(recipe_of(BY_NAME[row.name], budget), seed)
            labels = {"row": row.name, "seed": seed}
            training = training_cell(f"{row.name}-seed{seed}", recipe, labels | {"part": "training"})
            made += [training, search_cell(training, *SEARCHED[budget])]
    for row, like in zip(FITTED, RECURRENT, strict=True):
        made += _fitted_cells(row, like, budget)
    return made


def _fitted_cells(row: Row, like: Row, budget: Budget) -> list[Cell]:
    reference, candidate = (recipe_of(BY_NAME[each.name], budget) for each in (like, row))
    fit = Cell(
        name=f"{row.name}-length",
        job=FIT,
        settings={"reference": to_json(reference), "candidate": to_json(candidate)},
        labels={"row": row.name, "part": "fit"},
    )
    made = [fit]
    for seed in seeds(budget):
        training = Cell(
            name=f"{row.name}-seed{seed}",
            job=TRAIN_FITTED,
            settings={"length": fit.name, "recipe": to_json(seeded(candidate, seed))},
            labels={"row": row.name, "seed": seed, "part": "training"},
            after=(fit.name,),
        )
        made += [training, search_cell(training, *SEARCHED[budget])]
    return made


@job(FIT)
def fit_length(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """The longest segments of `candidate` whose updates take no more memory than those of `reference`."""
    reference, candidate = (from_json(Recipe, settings[name]) for name in ("reference", "candidate"))
    measured = place.device.type == "cuda"
    needs: Callable[[Recipe], float] = measured_bytes if measured else estimated_bytes
    allowed, tried = needs(reference), {}

    def fits(length: int) -> bool:
        tried[length] = needs(with_segment(candidate, length))
        return tried[length] <= allowed

    found = longest_fitting(fits, reference.train.segment)
    values = {
        "length": found,
        "reference_length": reference.train.segment,
        "bytes": tried[found],
        "allowed_bytes": allowed,
        "measured": measured,
        "tried": sorted(tried.items()),
    }
    write_json(place.folder / FOUND, values)
    return values


def longest_fitting(fits: Callable[[int], bool], start: int) -> int:
    """By bisection, in steps of a few tokens; a length takes more memory than every shorter one."""
    low, high = 1, LONGEST * start // STEP
    if not fits(low * STEP):
        raise MnemoError(f"not even segments of {STEP} tokens take as little memory as the model with recurrence")
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle - 1)
    return low * STEP


def with_segment(recipe: Recipe, length: int) -> Recipe:
    return replace(recipe, train=replace(recipe.train, segment=length))


def measured_bytes(recipe: Recipe) -> float:
    """Most GPU memory that is taken at any time of an update, as it is written: neither compiled nor recorded."""
    before = allocated(torch.device("cuda"))
    plain = replace(recipe.train, compile=False, cuda_graph=False, device="cuda")
    peak = training_speed(recipe.model, plain, updates=1, rounds=1).peak_bytes
    assert peak is not None
    return float(peak - before)


def estimated_bytes(recipe: Recipe) -> float:
    """Without a GPU: what autograd keeps of an update, counted, and the state; the weights are the same in all."""
    rows = recipe.train.batch
    return activation_bytes(recipe.model, recipe.train, rows) + rows * state_row_bytes(
        recipe.model, recipe.train.precision
    )


@job(TRAIN_FITTED)
def train_fitted(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    length = load_json(place.of(settings["length"]) / FOUND)["length"]
    recipe = with_segment(from_json(Recipe, settings["recipe"]), length)
    return train_here(recipe, place)


def best(results: Results, row: Row) -> Measured:
    return ppl(BY_NAME[row.name].label, searches(results, row=row.name))


def verdicts(results: Results) -> list[Verdict]:
    made = [_room(results)]
    for row, like in zip(FITTED, RECURRENT, strict=True):
        claim = f"At equal memory, recurrence is better than longer segments ({row.loss} loss)."
        paper = f"{shown(like.paper_best)} at length {like.paper_length} against {shown(row.paper_best)} at "
        made.append(lower(results, claim, f"{paper}{row.paper_length}", best(results, like), best(results, row)))
    return made


def _room(results: Results) -> Verdict:
    claim = "Recurrence takes memory: without it, longer segments fit."
    paper = "176 and 172 tokens instead of 128"
    found = [cell for row in FITTED for cell in results.select(part="fit", row=row.name) if cell.values]
    if len(found) < len(FITTED):
        return undecided(claim, paper, [f"{row.name}'s length" for row in FITTED])
    lengths = [cell.values["length"] for cell in found]
    reference = found[0].values["reference_length"]
    how = "measured" if all(cell.values["measured"] for cell in found) else "estimated, for want of a GPU"
    ours = f"{lengths[0]} and {lengths[1]} tokens instead of {reference} ({how})"
    return judged(results, claim, paper, ours, min(lengths) > reference)


def tables(results: Results) -> list[Table]:
    rows = [
        [
            BY_NAME[row.name].label,
            spread(results.values("trained", part="lengths", row=row.name)[:1]),
            *found_columns(searches(results, row=row.name)),
            *(shown(each) for each in (row.paper_length, row.paper_initial, row.paper_best, row.paper_attention)),
        ]
        for row in (*RECURRENT, *FITTED)
    ]
    ours = ["length", "ppl init", "ppl best", "attention"]
    headers = ["model", *ours, *(f"paper: {name}" for name in ours)]
    caption = (
        "Backpropagation length, validation perplexity per token at the attention length of training and at the best "
        "of that and longer ones, and the shortest length within 0.1% of that."
    )
    return [Table(title="Table 8: equal GPU memory", headers=headers, rows=rows, caption=caption)]


def figures(results: Results) -> list[Figure]:
    bars = [(one.label, one.mean) for row in (*RECURRENT, *FITTED) if (one := best(results, row)).values]
    if not bars:
        return []
    caption = "Best validation perplexity per token, mean over seeds; all models take the same memory."
    return [bar_figure("equal-memory", "Perplexity at equal memory", caption, bars, unit="perplexity")]


EQUAL_MEMORY = Experiment(
    name="xl-equal-memory",
    title="Recurrence against longer segments at equal GPU memory",
    paper="Transformer-XL",
    covers=("Table 8", "Appendix A"),
    claim="Even where the memory of the recurrence is spent on longer segments instead, recurrence is better.",
    cells=cells,
    verdicts=verdicts,
    figures=figures,
    tables=tables,
    notes=(
        "The lengths without recurrence are found here: the longest segments, to 4 tokens, whose updates take no "
        "more GPU memory than those with recurrence. Without a GPU they are estimated from what autograd keeps.",
        "Fused kernels keep no attention matrix: what a memory costs here, and so how long segments become, is not "
        "what it is in the published code.",
        "As many updates of longer segments read more text, at equal batch: 1.4 times as much where 128 become 176.",
    ),
)
