"""The learning curves of one run: for a terminal, a notebook and a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.report.charts import LineChart, Series, draw_lines
from mnemo.report.loss_units import loss_unit
from mnemo.report.runs import Run
from mnemo.report.svg import Drawing, for_page, slugify, standalone
from mnemo.report.terminal_plot import Curve, as_text, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
TRAIN, VALID = "training", "validation"


def terminal_curves(run: Run) -> list[Curve]:
    """Training and validation loss in the unit of the corpus."""
    unit = loss_unit(run.corpus.get("unit"))
    named = ((TRAIN, run.train), (VALID, run.valid))
    return [
        Curve(f"{name}, {unit.short}", [(metric.step, unit.of(metric.loss)) for metric in metrics])
        for name, metrics in named
    ]


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
        with atomic.new_file(path) as partial:
            self.figure.savefig(partial, format=kind, dpi=160, bbox_inches="tight", pad_inches=0.15)
        return path

    def __repr__(self) -> str:
        return f"{self.run.name}\n{as_text(draw(terminal_curves(self.run)))}"

    def _repr_svg_(self) -> str:
        name = self.run.name
        return standalone(for_page(self._drawing, slugify(name), name, f"Losses of {name} by step."))


def _drawing(run: Run) -> Drawing:
    unit = loss_unit(run.corpus.get("unit"))
    named = ((TRAIN, run.train), (VALID, run.valid))
    series = [
        Series(label, np.array([(metric.step, unit.of(metric.loss)) for metric in metrics], dtype=float), color)
        for color, (label, metrics) in enumerate(named)
        if metrics
    ]
    markers = max(len(run.train), len(run.valid)) <= 60
    chart = LineChart(series, "step", unit.long, y_logarithmic=unit.logarithmic, markers=markers)
    drawing = draw_lines(chart)
    drawing.canvas.patch.set(visible=True, facecolor="white")
    return drawing
