"""Records of speedruns: a recipe, and the numbers of every seed that was trained with it.

`python -m tools.speedrun` makes their files in docs/measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnemo.errors import MnemoError, plural
from mnemo.papers.grid import Measure

Record = Mapping[str, Any]
"""The content of a file."""
SCORE = Measure(unit="bpc", digits=4, scale="bpc")


def counting_score(run: Record, memory: int) -> float | None:
    """bpc of a run as the rules count it: the test set in one row, at the memory of training. None if not scored."""
    counted = "test", 1, memory, None
    found = {each["bpc"] for each in run["scores"] if _setting(each) == counted}
    if len(found) > 1:
        raise MnemoError(f"there are several scores that count: {', '.join(f'{each:.4f}' for each in sorted(found))}")
    return float(found.pop()) if found else None


def _setting(score: Record) -> tuple[str, int, int, int | None]:
    """Older files lack the limit, since all of their scores of test are those of the whole split."""
    return score["split"], score["batch"], score["memory"], score.get("limit")


def scores_that_count(record: Record) -> list[float]:
    """The scores that count, one for each seed."""
    memory = record["recipe"]["model"]["memory"]["long"]["length"]
    return [score for run in record["runs"] if (score := counting_score(run, memory)) is not None]


def score_in_words(record: Record) -> str:
    """Mean over the seeds, with the standard deviation of several."""
    return SCORE.text(scores_that_count(record))


def seeds_in_words(record: Record) -> str:
    return plural(len(scores_that_count(record)), "seed")


def seconds_in_words(record: Record) -> str:
    """Of the fastest and of the slowest run."""
    fastest, slowest = training_seconds(record)
    return f"{fastest:,.0f}" if round(fastest) == round(slowest) else f"{fastest:,.0f} to {slowest:,.0f}"


def training_seconds(record: Record) -> tuple[float, float]:
    """Of the fastest and of the slowest run."""
    each = [float(run["training_seconds"]) for run in record["runs"]]
    return min(each), max(each)
