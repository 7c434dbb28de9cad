"""Scores at several memory lengths, and the search for the attention length that is long enough."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mnemo.data.corpus import Split
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import first_symbols, score_split
from mnemo.evaluation.score import Score
from mnemo.evaluation.settings import EvaluationSettings
from mnemo.inference.generation import NOT_FINITE
from mnemo.model import Model
from mnemo.model.positions import Learned
from mnemo.progress import ShowProgress


def sweep_memory(
    model: Model,
    split: Split,
    settings: EvaluationSettings,
    lengths: Sequence[int],
    progress: ShowProgress | None = None,
) -> list[Score]:
    """A score at every memory length of the long-range layers, in the given order."""
    return [score_split(model, split, replace(settings, memory=length), progress=progress)[0] for length in lengths]


@dataclass(frozen=True, kw_only=True)
class LengthSearch:
    """The columns 'PPL init', 'PPL best' and 'Attn Len' of the Transformer-XL paper's table 5."""

    initial: Score
    """At the attention length of training."""
    best: Score
    shortest: Score
    """At the shortest attention length within `tolerance` of the best."""
    tolerance: float
    tried: tuple[Score, ...]
    """Every length that was scored, shortest first."""


def find_length(
    model: Model,
    split: Split,
    settings: EvaluationSettings,
    *,
    trained_span: int,
    tolerance: float = 1e-3,
    longest: int | None = None,
    progress: ShowProgress | None = None,
) -> LengthSearch:
    """Lengthen the attention (memory + segment) until the relative gain in perplexity is under `tolerance`.

    From the training length on, the attention doubles until a doubling gains less than the tolerance, or until
    `longest` or a row of text ends. Then the shortest length whose perplexity is within the tolerance of the best is
    found by bisection, to a sixteenth of the training length; it may be shorter than that. `trained_span`: segment and
    context of training together. A model without memory gets a longer re-encoded context instead.
    """
    new = settings.segment
    trained = max(model.config.memory.lengths(model.config.num_layers))

    @functools.cache
    def at(attention: int) -> Score:
        beyond = max(0, attention - new)
        changed = replace(settings, memory=beyond) if trained else replace(settings, context=beyond)
        (score,) = score_split(model, split, changed, progress=progress)
        return score

    initial = at(max(new, trained_span + trained))
    if not math.isfinite(initial.loss):
        raise MnemoError(NOT_FINITE)
    scores = [initial, *_grow(at, initial.attention, tolerance, _longest(model, split, settings, longest))]
    best = min(scores, key=lambda score: score.loss)
    scores += _shorten(at, new, best, tolerance, resolution=max(1, initial.attention // 16))
    tried = tuple(sorted(set(scores), key=lambda score: score.attention))
    shortest = next(score for score in tried if _reaches(score, best, tolerance))
    return LengthSearch(initial=initial, best=best, shortest=shortest, tolerance=tolerance, tried=tried)


def _longest(model: Model, split: Split, settings: EvaluationSettings, longest: int | None) -> int:
    """The longest useful attention: a row of text, or the table of a model with learned positions."""
    row = len(first_symbols(split, settings.limit).ids) // settings.batch
    positions = model.config.positions
    ends = [row, longest, positions.length if isinstance(positions, Learned) else None]
    return min(end for end in ends if end is not None)


def _grow(at: Callable[[int], Score], attention: int, tolerance: float, longest: int) -> Iterator[Score]:
    while attention < longest:
        longer = min(2 * attention, longest)
        yield at(longer)
        if 1 - at(longer).perplexity / at(attention).perplexity < tolerance:
            return
        attention = longer


def _shorten(
    at: Callable[[int], Score], shortest: int, best: Score, tolerance: float, resolution: int
) -> Iterator[Score]:
    low, high = shortest, best.attention
    yield at(low)
    if _reaches(at(low), best, tolerance):
        return
    while high - low > resolution:
        middle = (low + high) // 2
        yield at(middle)
        if _reaches(at(middle), best, tolerance):
            high = middle
        else:
            low = middle


def _reaches(score: Score, best: Score, tolerance: float) -> bool:
    return score.perplexity <= best.perplexity * (1 + tolerance)
