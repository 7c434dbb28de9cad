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
    """Write pictures over the length of the text, and return their paths.

    They show the time of a written token, the time for which a GPU computed it, and the memory.
    """
    paths = [_write(base, "cost", "Time of a written token", "ms a token", curves, _milliseconds)]
    if all(point.device_seconds_per_token is not None for points in curves.values() for point in points):
        paths.append(_write(base, "gpu", "GPU time of a written token", "ms a token", curves, _gpu_milliseconds))
    return [*paths, _write(base, "memory", "Memory of the conversation", "MiB", curves, lambda one: one.bytes / MIB)]


def _milliseconds(point: GrowthPoint) -> float:
    return 1e3 * point.seconds_per_token


def _gpu_milliseconds(point: GrowthPoint) -> float:
    return 1e3 * (point.device_seconds_per_token or 0)


def _write(
    base: Path,
    kind: str,
    title: str,
    y_label: str,
    curves: Mapping[str, Sequence[GrowthPoint]],
    value: Callable[[GrowthPoint], float],
) -> Path:
    lines = [Line(name, [(point.length, value(point)) for point in points]) for name, points in curves.items()]
    caption = "One conversation, over its tokens so far: one session of an engine beside a Llama of transformers."
    figure = line_figure(kind, title, caption, lines, x_label="tokens of the conversation", y_label=y_label)
    path = base.with_name(f"{base.stem}-{kind}.svg")
    write_text(path, standalone(figure.svg))
    return path
