"""Figures that several of LaMemo's experiments share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from mnemo.papers.experiment import Figure, Results
from mnemo.papers.lamemo.compare import Unit, by_seed
from mnemo.report.plots import bar_figure, line_figure, lines_over_seeds


def learning_curves(
    results: Results, models: Sequence[str], unit: Unit, *, curve: str = "curve", label: str = "model"
) -> list[Figure]:
    """Validation (or training) losses of models over steps: means, with bands over seeds."""
    points = [
        (str(result.labels[label]), float(step), unit.of(loss))
        for model in models
        for result in results.select(**{label: model})
        for step, loss in result.values.get(curve, [])
        if isinstance(loss, (int, float)) and math.isfinite(unit.of(loss))
    ]
    if not points:
        return []
    split = "Validation" if curve == "curve" else "Training"
    caption, top = f"{split}; means over seeds, the band from the lowest to the highest.", _settled(points)
    if any(value > top for _, _, value in points):
        caption += " Cut off in the first tenth."
    return [
        line_figure(
            f"{split.lower()}-curves",
            f"{split} curves",
            caption,
            lines_over_seeds(points),
            x_label="step",
            y_label=unit.name,
            y_max=top,
        )
    ]


def _settled(points: Sequence[tuple[str, float, float]]) -> float:
    """The largest value behind the first tenth of the steps, where curves fall steeply."""
    end = max(x for _, x, _ in points)
    return max(y for _, x, y in points if x >= end / 10)


def bars_of_scores(results: Results, models: Sequence[str], unit: Unit, *, label: str = "model") -> list[Figure]:
    found = {model: by_seed(results, "test", unit, **{label: model}) for model in models}
    bars = [(model, statistics.fmean(values.values())) for model, values in found.items() if values]
    if len(bars) < 2:
        return []
    return [
        bar_figure("test", "Test scores", f"Means over seeds, in {unit.name}; shorter is better.", bars, unit=unit.name)
    ]
