"""The learning curves of one run: for a terminal, a notebook and a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mnemo.errors import MnemoError
from mnemo.report.charts import LineChart, Series, draw_lines
from mnemo.report.loss_units import loss_unit
from mnemo.report.runs import Run
from mnemo.report.svg import Drawing, for_page, save_picture, slugify, standalone
from mnemo.report.terminal_plot import Curve, as_text, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def terminal_curves(run: Run) -> list[Curve]:
    """Training and validation loss in the unit of the corpus."""
    short = loss_unit(run.corpus.get("unit")).short
    return [Curve(f"{name}, {short}", points) for name, points in _points(run).items()]


def _points(run: Run) -> dict[str, list[tuple[float, float]]]:
    unit, named = loss_unit(run.corpus.get("unit")), {"training": run.train, "validation": run.valid}
    return {name: [(metric.step, unit.of(metric.loss)) for metric in metrics] for name, metrics in named.items()}


class RunCurves:
    """Training and validation loss over the steps. It prints itself in a terminal and is a picture in a notebook."""

    def __init__(self, run: Run) -> None:
        if not run.train and not run.valid:
            raise MnemoError(f"{run.path} has no losses to draw: it was not trained here")
        self.run, self._drawing = run, _drawing(run)

    @property
    def figure(self) -> Figure:
        """The Matplotlib figure."""
        return self._drawing.canvas

    def save(self, path: str | Path) -> Path:
        """Write the picture; the suffix chooses between PNG, SVG and PDF."""
        path = Path(path)
        kind = path.suffix.removeprefix(".").lower()
        if kind not in FORMATS:
            raise MnemoError(f"{path}: the picture's file name ends with {', '.join(f'.{name}' for name in FORMATS)}")
        save_picture(self._drawing, path, kind)
        return path

    def __repr__(self) -> str:
        return f"{self.run.name}\n{as_text(draw(terminal_curves(self.run)))}"

    def _repr_svg_(self) -> str:
        name = self.run.name
        return standalone(for_page(self._drawing, slugify(name), name, f"Losses of {name} by step."))


def _drawing(run: Run) -> Drawing:
    unit = loss_unit(run.corpus.get("unit"))
    series = [
        Series(label, np.array(points, dtype=float), color)
        for color, (label, points) in enumerate(_points(run).items())
        if points
    ]
    markers = max(len(run.train), len(run.valid)) <= 60
    chart = LineChart(series, "step", unit.long, y_logarithmic=unit.logarithmic, markers=markers)
    drawing = draw_lines(chart)
    drawing.canvas.patch.set(visible=True, facecolor="white")
    return drawing
