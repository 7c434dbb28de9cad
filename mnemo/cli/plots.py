"""Curves of evaluation results as PNG and SVG files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK, MUTED, GRID, LINE, MARK = "#1c2230", "#5a6373", "#ecebe6", "#3b4cc0", "#d1600a"
MIN_TICK_DISTANCE = 0.06
"""As a share of the axis."""


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
    """Lengths on a logarithmic axis, each measured one a dot, instead of a plain line."""


def save_curve(curve: Curve, path: Path) -> list[Path]:
    """Write `path` with the suffixes .png and .svg."""
    figure = _draw(curve)
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for target in paths:
        partial = target.with_name(f".tmp-{os.getpid()}-{target.name}")
        try:
            figure.savefig(partial, format=target.suffix[1:], dpi=160, facecolor="white")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return paths


def _draw(curve: Curve) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.grid(color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.plot(curve.x, curve.y, color=LINE, linewidth=1.8, marker="o" if curve.by_length else None, markersize=5)
    if curve.mark is not None:
        axes.axvline(curve.mark, color=MARK, linewidth=1.2, linestyle=(0, (4, 3)), label=curve.mark_label)
        axes.legend(frameon=False, labelcolor=INK)
    if curve.by_length:
        _scale_lengths(axes, curve.x)
    axes.set_title(curve.title, loc="left", fontsize=11, color=INK, pad=10)
    axes.set_xlabel(curve.x_label, color=INK)
    axes.set_ylabel(curve.y_label, color=INK)
    axes.tick_params(colors=MUTED, length=0, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    return figure


def _scale_lengths(axes: Any, lengths: Sequence[int]) -> None:
    """Doublings are evenly spaced where lengths span more than a factor of 8."""
    positive = sorted(length for length in set(lengths) if length)
    if positive and positive[-1] > 8 * positive[0]:
        axes.set_xscale("symlog", base=2, linthresh=positive[0])
    ticks = _apart(axes, sorted(set(lengths)))
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


def _apart(axes: Any, ticks: Sequence[int]) -> list[int]:
    """The ticks whose labels do not touch the one before."""
    axes.get_xlim()  # settles the limits, on which places depend
    kept: list[int] = []
    places: list[float] = []
    for tick in ticks:
        place = (axes.transScale + axes.transLimits).transform((tick, 1.0))[0]
        if not places or place - places[-1] > MIN_TICK_DISTANCE:
            kept.append(tick)
            places.append(place)
    return kept
