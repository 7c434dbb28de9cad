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
from mnemo.papers.experiment import Budget, Cell, Experiment, Results, Table, look_up
from mnemo.papers.grid import Grid, Row
from mnemo.papers.jobs import Place, job, no_training, train_here
from mnemo.papers.judge import Better, Claim, Observed, Outcome, judge
from mnemo.papers.tables import Column, grid_table, label, published
from mnemo.papers.xl.ablation import BY_NAME, recipe_of, row_of
from mnemo.papers.xl.attention_length import SEARCHED, perplexity_at, search_columns, searches
from mnemo.papers.xl.benchmark import PAPER
from mnemo.papers.xl.recipes import seeded
from mnemo.recipes.recipe import Recipe
from mnemo.training.training_speed import training_speed

FIT, TRAIN_FITTED = "xl-fit-length", "xl-train-fitted"
FOUND = "length.json"
STEP = 4
"""Lengths are multiples of it, as the paper's seem to be."""
LONGEST = 4
"""Longest segment that is tried, as a multiple of the reference's."""


class Published(NamedTuple):
    """A row of the paper's table."""

    length: int
    initial: float
    best: float
    attention: int


class Pair(NamedTuple):
    """A model with recurrence, and one without whose segments are as long as equal memory allows."""

    loss: str
    recurrent: str
    fitted: str
    paper: tuple[Published, Published]

    @property
    def fit(self) -> str:
        """Name of the cell that finds the length."""
        return f"{self.fitted}-length"


PAIRS = (
    Pair("full", "xl", "no-memory", (Published(128, 27.02, 26.77, 500), Published(176, 28.43, 27.98, 400))),
    Pair("half", "half", "no-memory-half", (Published(128, 28.69, 28.33, 460), Published(172, 28.83, 28.83, 120))),
)


def grid(budget: Budget) -> Grid:
    recurrent = [_row(pair.recurrent, pair.paper[0], budget) for pair in PAIRS]
    rows = [*recurrent, *(_fitted(pair, budget) for pair in PAIRS)]
    return Grid(
        rows=rows,
        measure=perplexity_at("best", budget),
        first=[_fit(pair, budget) for pair in PAIRS],
        last=searches(rows, budget),
    )


def _row(name: str, paper: Published, budget: Budget) -> Row:
    return replace(row_of(BY_NAME[name], budget), paper=tuple(f"{value:g}" for value in paper))


def _fitted(pair: Pair, budget: Budget) -> Row:
    recipe = recipe_of(BY_NAME[pair.fitted], budget)

    def settings(seed: int) -> dict[str, Any]:
        return {"length": pair.fit, "recipe": to_json(seeded(recipe, seed))}

    row = _row(pair.fitted, pair.paper[1], budget)
    return replace(row, job=TRAIN_FITTED, settings=settings, after=(pair.fit,))


def _fit(pair: Pair, budget: Budget) -> Cell:
    reference, candidate = (recipe_of(BY_NAME[name], budget) for name in (pair.recurrent, pair.fitted))
    settings = {"reference": to_json(reference), "candidate": to_json(candidate)}
    return Cell(name=pair.fit, job=FIT, settings=settings, labels={"row": pair.fitted, "part": "fit"})


@job(FIT, trains=no_training)
def fit_length(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """Find the longest segments of `candidate` whose updates take no more memory than those of `reference`."""
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
    """Bisect over multiples of STEP; a longer segment takes more memory."""
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
    """Peak GPU memory of an update, neither compiled nor recorded as a CUDA graph."""
    before = allocated(torch.device("cuda"))
    plain = replace(recipe.train, compile=False, cuda_graph=False, device="cuda")
    peak = training_speed(recipe.model, plain, updates=1, rounds=1).peak_bytes
    assert peak is not None
    return float(peak - before)


def estimated_bytes(recipe: Recipe) -> float:
    """Without a GPU: tensors that autograd keeps, and the state; the weights are the same in all models."""
    rows = recipe.train.batch
    return activation_bytes(recipe.model, recipe.train, rows) + rows * state_row_bytes(
        recipe.model, recipe.train.precision
    )


@job(TRAIN_FITTED)
def train_fitted(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    length = load_json(place.of(settings["length"]) / FOUND)["length"]
    recipe = with_segment(from_json(Recipe, settings["recipe"]), length)
    return train_here(recipe, place)


def claims() -> list[Claim]:
    room = Observed(
        "Recurrence takes memory: without it, longer segments fit.", "176 and 172 tokens instead of 128", _room
    )
    return [room, *map(_recurrence_is_better, PAIRS)]


def _recurrence_is_better(pair: Pair) -> Better:
    with_memory, fitted = pair.paper
    return Better(
        f"At equal memory, recurrence is better than longer segments ({pair.loss} loss).",
        f"{with_memory.best} at length {with_memory.length} against {fitted.best} at {fitted.length}",
        pair.recurrent,
        pair.fitted,
    )


def _room(results: Results) -> Outcome | None:
    cells = [cell for pair in PAIRS if (cell := results.one(pair.fit)) and cell.values]
    if len(cells) < len(PAIRS):
        return None
    lengths, (reference, *_) = ([cell.values[key] for cell in cells] for key in ("length", "reference_length"))
    how = "measured" if all(cell.values["measured"] for cell in cells) else "estimated, without a GPU"
    ours = f"{' and '.join(map(str, lengths))} tokens instead of {reference} ({how})"
    return Outcome(ours, min(lengths) > reference)


def _segment(grid: Grid, results: Results, row: Row) -> object:
    found = grid.found(results, row, f"-{SEARCHED}")
    return look_up(found[0][1].values, "trained") if found else ""


def tables(results: Results) -> list[Table]:
    numbers = ("length", "ppl init", "ppl best", "attention")
    paper = [published(f"paper: {name}", index) for index, name in enumerate(numbers)]
    columns = [label("model"), Column("length", _segment), *search_columns(results.budget), *paper]
    caption = (
        "Length of segments in training, validation perplexity per token at the attention length of training and at "
        "the best length, and the shortest length within 0.1% of the best."
    )
    return grid_table(grid(results.budget), results, *columns, title="Table 8: equal GPU memory", caption=caption)


EQUAL_MEMORY = Experiment(
    name="xl-equal-memory",
    title="Recurrence against longer segments at equal GPU memory",
    paper=PAPER,
    covers=("Table 8", "Appendix A"),
    claim="Recurrence is better than longer segments that take the same GPU memory.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, claims()),
    tables=tables,
    notes=(
        "The lengths without recurrence are found here: the longest segments, to 4 tokens, whose updates take no "
        "more GPU memory than those with recurrence. Without a GPU they are estimated from the tensors that autograd "
        "keeps.",
        "Fused kernels keep no attention matrix, so a memory costs less here than in the published code, and other "
        "lengths take equal memory.",
        "At an equal number of updates and an equal batch, longer segments read more text: 1.4 times as much if 128 "
        "become 176.",
    ),
)
