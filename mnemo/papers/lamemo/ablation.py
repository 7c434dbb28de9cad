"""The parts of LaMemo that are needed (Table 3), and the encoding that fails (Figure 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mnemo.errors import one_line
from mnemo.memory import Lookahead
from mnemo.papers.experiment import Budget, CellResult, Experiment, Figure, Results, Table
from mnemo.papers.figures import learning_curves, score_bars
from mnemo.papers.grid import BPC, PPL, Grid, Row
from mnemo.papers.jobs import Place, job, train_and_score
from mnemo.papers.judge import Better, Claim, Observed, Outcome, judge, scores
from mnemo.papers.lamemo import models
from mnemo.papers.lamemo.comparison import SMALLER, on_valid, trained_row
from mnemo.papers.lamemo.models import PAPER, published
from mnemo.papers.tables import Column, grid_table, label, score
from mnemo.papers.tables import published as published_value
from mnemo.recipes.lamemo import WORDS
from mnemo.report.runs import read_runs
from mnemo.training import Diverged

FULL, NO_INTERPOLATION, NO_LOOKAHEAD, SIGNED = "full", "no interpolation", "no look-ahead", "Transformer-XL's encoding"
MEMORIES = {
    FULL: Lookahead(),
    NO_INTERPOLATION: Lookahead(alpha="zero"),
    NO_LOOKAHEAD: Lookahead(alpha="one"),
    SIGNED: Lookahead(encoding="signed"),
}
PUBLISHED = {
    FULL: ("22.98", "23.77"),
    NO_INTERPOLATION: ("23.67", "24.90"),
    NO_LOOKAHEAD: ("-", "24.56"),
    SIGNED: ("FAIL", "FAIL"),
}
"""Perplexity on valid and test of WikiText-103."""
SEEDS = 3
FAILED = 0.2
"""Share by which the test loss (nats) must lie above the full model's for a run to have failed to converge."""


@job("lamemo-train")
def train_or_diverge(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    """As `train`, but training that ends without a finite loss is a result."""
    try:
        return {"diverged": None} | train_and_score(settings, place)
    except Diverged as error:
        (found,), _ = read_runs([place.run])
        curve = [[metric.step, metric.loss] for metric in found.train if math.isfinite(metric.loss)]
        return {"diverged": one_line(error), "train_curve": curve}


def grid(budget: Budget) -> Grid:
    rows = [_row(budget, name) for name in MEMORIES]
    return Grid(rows=rows, measure=PPL if budget == "paper" else BPC)


def _row(budget: Budget, name: str) -> Row:
    if budget == "paper":
        recipe = published("lamemo-wikitext103", replace(MEMORIES[name], length=WORDS))
    else:
        size = models.SELF_TEST if budget == "self-test" else models.ABLATION
        recipe = size.recipe(replace(MEMORIES[name], length=size.length))
    row = trained_row(name, recipe, budget, 1 if budget == "self-test" else SEEDS, paper=PUBLISHED[name])
    return replace(row, job="lamemo-train")


def _fails(results: Results) -> Outcome | None:
    found = grid(results.budget)
    reference = found.by_seed(results, FULL)
    tried = results.select(model=SIGNED)
    if not tried or not reference or not all(each.values for each in tried):
        return None
    limit = (1 + FAILED) * max(reference.values())
    failed = [each for each in tried if has_failed(each, limit)]
    ours = (
        f"{len(failed)} of {len(tried)} seeds failed (no finite loss, or a loss {FAILED:.0%} above the full model's); "
        f"test: {scores(found, results, (SIGNED, FULL))}"
    )
    return Outcome(ours, len(failed) == len(tried), len(tried))


def has_failed(result: CellResult, limit: float) -> bool:
    """Without a finite loss, or with one above the limit."""
    loss = BPC.of(result)
    return loss is None or loss > limit


CLAIMS: tuple[Claim, ...] = (
    Better("Look-ahead is needed.", "23.77 against 24.56 ppl", FULL, NO_LOOKAHEAD),
    Better("Memory interpolation is needed.", "23.77 against 24.90 ppl", FULL, NO_INTERPOLATION),
    Better(
        "Look-ahead without interpolation is worse than no look-ahead.",
        "24.56 against 24.90 ppl",
        NO_LOOKAHEAD,
        NO_INTERPOLATION,
    ),
    Observed(
        "Look-ahead with Transformer-XL's encoding fails to converge, whatever the seed.", "FAIL with 3 seeds", _fails
    ),
)


def figures(results: Results) -> list[Figure]:
    found = grid(results.budget)
    return [
        *learning_curves(found, results, slug="validation-curves", title="Validation curves"),
        *learning_curves(
            found, results, (FULL, SIGNED), slug="training-curves", title="Training curves", curve="train_curve"
        ),
        *score_bars(found, results),
    ]


def tables(results: Results) -> list[Table]:
    found = grid(results.budget)
    unit = found.measure.unit
    caption = (
        "The published perplexities are of WikiText-103. The valid score of the third row is not legible in our copy."
    )
    return grid_table(
        found,
        results,
        label("configuration"),
        score(f"valid {unit}", on_valid(found.measure)),
        score(f"test {unit}"),
        Column("diverged", lambda grid, results, row: _num_diverged(grid.found(results, row))),
        published_value("published valid ppl", 0),
        published_value("published test ppl", 1),
        title="Ablations",
        caption=caption,
    )


def _num_diverged(found: Sequence[tuple[int, CellResult]]) -> int:
    return sum(each.values.get("diverged") is not None for _, each in found)


ABLATION = Experiment(
    name="lamemo-ablation",
    title="What of LaMemo is needed, and the encoding that fails",
    paper=PAPER,
    covers=("Table 3", "Figure 8"),
    claim="Look-ahead and interpolation both lower the perplexity; with Transformer-XL's encoding of negative "
    "distances training fails.",
    cells=lambda budget: grid(budget).cells,
    verdicts=lambda results: judge(grid(results.budget), results, CLAIMS),
    figures=figures,
    tables=tables,
    notes=(
        "No interpolation: alpha is 0; no look-ahead: alpha is 1. Neither has a switch in the released code.",
        "A seed has failed when its loss is no finite number or lies 20% above the full model's in nats: the paper "
        "says no more than FAIL.",
        "small: bytes of novels.",
        SMALLER,
    ),
)
