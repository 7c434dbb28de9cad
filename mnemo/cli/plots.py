"""Curves of evaluation results as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mnemo.files import atomic
from mnemo.report.charts import LineChart, Series, draw_lines
from mnemo.report.files import write_text
from mnemo.report.svg import Drawing, for_page, slugify, standalone


@dataclass(frozen=True, kw_only=True)
class Curve:
    x: Sequence[int]
    y: Sequence[float]
    x_label: str
    y_label: str
    title: str
    mark: int | None = None
    """An x to point out, such as the training length."""
    mark_label: str = ""
    by_length: bool = False
    """Whether x are lengths: evenly spaced doublings, a marker for each."""


def save_curve(curve: Curve, path: Path) -> list[Path]:
    """Write `path` with the suffixes .png and .svg."""
    png, svg = (path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg"))
    drawing = draw_curve(curve)
    description = f"{curve.y_label} against {curve.x_label}."
    write_text(svg, standalone(for_page(drawing, slugify(path.name), curve.title, description)))
    drawing.canvas.patch.set(visible=True, facecolor="white")
    with atomic.new_file(png) as partial:
        drawing.canvas.savefig(partial, format="png", dpi=160, bbox_inches="tight", pad_inches=0.15)
    return [png, svg]


def draw_curve(curve: Curve) -> Drawing:
    points = np.array(list(zip(curve.x, curve.y, strict=True)), dtype=float)
    chart = LineChart(
        [Series(curve.title, points, 0)],
        curve.x_label,
        curve.y_label,
        x_kind="doubling" if curve.by_length else "linear",
        mark=None if curve.mark is None else (curve.mark_label, float(curve.mark)),
        markers=curve.by_length,
    )
    return draw_lines(chart)
