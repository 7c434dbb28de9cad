"""Curves of evaluation results as PNG and SVG files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mnemo.report.charts import LineChart, Series, draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    figure = draw_curve(curve)
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for target in paths:
        partial = target.with_name(f".tmp-{os.getpid()}-{target.name}")
        try:
            figure.savefig(partial, format=target.suffix[1:], dpi=160)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return paths


def draw_curve(curve: Curve) -> Figure:
    chart = LineChart(
        [Series(curve.title, [(float(x), y) for x, y in zip(curve.x, curve.y, strict=True)], 0)],
        curve.x_label,
        curve.y_label,
        x_kind="doubling" if curve.by_length else "linear",
        mark=None if curve.mark is None else (curve.mark_label, float(curve.mark)),
        markers=curve.by_length,
    )
    figure = draw_lines(chart).canvas
    figure.patch.set(visible=True, facecolor="white")
    return figure
