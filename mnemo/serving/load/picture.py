"""The figures of the load benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mnemo.report.files import write_text
from mnemo.report.plots import Line, line_figure
from mnemo.report.svg import standalone
from mnemo.serving.load.growth import GrowthPoint

MIB = 2**20


def write_figures(base: Path, curves: Mapping[str, Sequence[GrowthPoint]]) -> list[Path]:
    """Write a picture of the cost of a token and one of the memory over the length of the text; return their paths."""
    return [
        _write(base, "cost", "Cost of a token", "ms a token", curves, lambda point: 1e3 * point.seconds_per_token),
        _write(base, "memory", "Memory of the conversation", "MiB", curves, lambda point: point.bytes / MIB),
    ]


def _write(
    base: Path,
    kind: str,
    title: str,
    y_label: str,
    curves: Mapping[str, Sequence[GrowthPoint]],
    value: Callable[[GrowthPoint], float],
) -> Path:
    lines = [Line(name, [(point.length, value(point)) for point in points]) for name, points in curves.items()]
    caption = "Over the tokens of one conversation that were read and written."
    figure = line_figure(kind, title, caption, lines, x_label="tokens of the conversation", y_label=y_label)
    path = base.with_name(f"{base.stem}-{kind}.svg")
    write_text(path, standalone(figure.svg))
    return path
