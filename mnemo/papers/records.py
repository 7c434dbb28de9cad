"""Records of speedruns: a recipe, and the numbers of every seed that was trained with it.

`python -m tools.speedrun` makes their files in docs/measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

Record = Mapping[str, Any]
"""The content of a file."""


def counting_score(run: Record, memory: int) -> float | None:
    """bpc of a run as the rules count it: the test set in one row, at the memory of training. None if not scored."""
    found = [each for each in run["scores"] if (each["split"], each["batch"], each["memory"]) == ("test", 1, memory)]
    return float(found[0]["bpc"]) if found else None


def scores_that_count(record: Record) -> list[float]:
    """The scores that count, one for each seed."""
    memory = record["recipe"]["model"]["memory"]["long"]["length"]
    return [score for run in record["runs"] if (score := counting_score(run, memory)) is not None]


def with_deviation(values: Sequence[float], digits: int = 4) -> str:
    """`1.0526`, or mean and standard deviation if there are several."""
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {stdev(values):.{digits}f}"


def seeds_in_words(record: Record) -> str:
    count = len(scores_that_count(record))
    return f"{count} seed{'s' if count > 1 else ''}"


def slowest_seconds(record: Record) -> float:
    """Of the slowest run."""
    return max(float(run["training_seconds"]) for run in record["runs"])
