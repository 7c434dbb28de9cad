"""Table 5, last block: a trained Transformer-XL whose attention is longer and longer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

from mnemo.config import from_json
from mnemo.evaluation.length_search import sweep_memory
from mnemo.evaluation.settings import resolve
from mnemo.papers.experiment import Cell, CellResult, Results, Table, Verdict
from mnemo.papers.jobs import Place, job
from mnemo.papers.xl.attention_length import scoring_cell, searches, trained
from mnemo.papers.xl.comparing import NOTICEABLE, Measured, judged, perplexity, shown, spread, undecided
from mnemo.recipes.recipe import EvalConfig, Recipe

LONGER = "xl-longer-attention"
PUBLISHED = {300: 23.35, 450: 23.16, 640: 23.09}
"""Perplexity of 151M parameters by attention length."""
TRAINED = min(PUBLISHED)
REACH = max(PUBLISHED) / TRAINED


class Row(Protocol):
    """Of Table 5."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...


def longer_cell(training: Cell, config: EvalConfig) -> Cell:
    """Score what `training` trains at the paper's multiples of its attention length."""
    recipe = from_json(Recipe, training.settings["recipe"])
    longest = recipe.train.segment + max(recipe.model.memory.lengths(recipe.model.num_layers))
    lengths = [round(longest * length / TRAINED) for length in PUBLISHED]
    return scoring_cell(training, "longer", LONGER, config, {"lengths": lengths})


@job(LONGER)
def score_lengths(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    with trained(settings, place) as one:
        new = one.config.segment or one.train.segment
        memories = [length - new for length in settings["lengths"]]
        evaluation = resolve(one.config, segment=one.train.segment)
        scores = sweep_memory(one.model, one.split, evaluation, memories, place.progress)
    return {"tried": [[score.attention, score.loss] for score in scores]}


def by_length(results: Results, row: str) -> dict[int, Measured]:
    """Perplexities at the attention length of training and at longer ones, as far as the paper's multiple of it.

    From cells that score just these lengths; where there are none, from what all searches for the best one tried.
    """
    cells = [cell for cell in results.select(part="longer", row=row) if cell.values.get("tried")]
    tried = [dict(cell.values["tried"]) for cell in cells]
    tried = tried or [_from_training_on(cell) for cell in searches(results, row=row)]
    common = set.intersection(*map(set, tried)) if tried else set()
    return {length: Measured(str(length), [perplexity(one[length]) for one in tried]) for length in sorted(common)}


def _from_training_on(search: CellResult) -> dict[int, float]:
    first = search.values["initial"]["attention"]
    return {length: loss for length, loss in search.values["tried"] if first <= length <= REACH * first}


def falls_with_attention(results: Results, row: Row) -> Verdict:
    claim = "The longer the attention, up to twice that of training, the lower the perplexity of Transformer-XL."
    paper = f"{', '.join(map(shown, PUBLISHED.values()))} at {', '.join(map(str, PUBLISHED))}, trained with {TRAINED}"
    found = by_length(results, row.name)
    if len(found) < 2:
        return undecided(claim, paper, [f"{row.label} with longer attention"])
    means = [one.mean for one in found.values()]
    falls = all(longer <= shorter for shorter, longer in pairwise(means))
    ours = f"{', '.join(spread(one.values) for one in found.values())} at {', '.join(map(str, found))}"
    return judged(results, claim, paper, ours, falls and 1 - means[-1] / means[0] >= NOTICEABLE)


def longer_table(results: Results, row: Row) -> Table:
    quoted = [["151M parameters, quoted", *_columns(length, TRAINED, shown(ppl))] for length, ppl in PUBLISHED.items()]
    found = by_length(results, row.name)
    ours = [[row.label, *_columns(length, min(found), spread(one.values))] for length, one in found.items()]
    caption = "Validation set, at multiples of the attention length of training; the paper's 'PPL init' is 23.43."
    return Table(
        title="Table 5, last block: longer attention",
        headers=["model", "attention", "of training's", "ppl"],
        rows=[*quoted, *ours],
        caption=caption,
    )


def _columns(length: int, trained: int, ppl: str) -> list[str]:
    return [f"{length:,}", f"{length / trained:.2f}", ppl]
