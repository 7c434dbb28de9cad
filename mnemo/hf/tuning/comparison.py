"""Figures that compare several runs on one task of BABILong, from a file of measurements.

The file has `task`, `chance` (the accuracy of a guess), `runs` and `published`. A run has a `label` and `results` as in
results.json, or the name of another `file` with them; `cut`: also draw its accuracy with the memory cut. A published
line has a `label` and `points`, pairs of tokens and accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemo.files.json_file import load_object
from mnemo.hf.tuning.results import accuracy_line
from mnemo.report.files import write_text
from mnemo.report.plots import Line, line_figure
from mnemo.report.svg import standalone

if TYPE_CHECKING:
    from mnemo.report.figure import Figure


def draw_comparison(path: Path, folder: Path, name: str) -> list[Path]:
    """Write figures of accuracy, seconds and GPU memory by length: NAME.svg, NAME-seconds.svg, NAME-gpu-memory.svg."""
    found = load_object(path)
    runs = [run | load_object(path.with_name(run["file"])) if "file" in run else run for run in found["runs"]]
    figures = {
        name: _accuracy(found, runs),
        f"{name}-seconds": _seconds(found["task"], runs),
        f"{name}-gpu-memory": _gpu_memory(found["task"], runs),
    }
    for slug, figure in figures.items():
        write_text(folder / f"{slug}.svg", standalone(figure.svg))
    return [folder / f"{slug}.svg" for slug in figures]


def _accuracy(found: dict[str, Any], runs: list[dict[str, Any]]) -> Figure:
    lines = [accuracy_line(run["label"], run["results"]) for run in runs]
    lines += [accuracy_line(f"{run['label']}, cut", run["results"], "_cut") for run in runs if run.get("cut")]
    for other in found["published"]:
        points = [(length, 100 * accuracy) for length, accuracy in other["points"]]
        lines.append(Line(f"{other['label']} (published)", points))
    return line_figure(
        "accuracy",
        f"BABILong {found['task']}: accuracy by length",
        "Right answers; bands are 95% intervals (Wilson) of our measurements.",
        lines,
        x_label="tokens",
        y_label="right answers, %",
        x_kind="doubling",
        y_max=100,
        reference=("a guess", 100 * found["chance"]),
    )


def _seconds(task: str, runs: list[dict[str, Any]]) -> Figure:
    return line_figure(
        "seconds",
        f"BABILong {task}: seconds by length",
        "Seconds per sample, in batches.",
        [_cost_line(run, "seconds", lambda result: result["seconds"] / result["samples"]) for run in runs],
        x_label="tokens",
        y_label="seconds per sample",
        x_kind="doubling",
        y_logarithmic=True,
    )


def _gpu_memory(task: str, runs: list[dict[str, Any]]) -> Figure:
    return line_figure(
        "gpu-memory",
        f"BABILong {task}: GPU memory by length",
        "Largest GPU memory in use, with the weights.",
        [_cost_line(run, "gigabytes", lambda result: result["gigabytes"]) for run in runs],
        x_label="tokens",
        y_label="gigabytes",
        x_kind="doubling",
    )


def _cost_line(run: dict[str, Any], needed: str, cost: Callable[[dict[str, Any]], float]) -> Line:
    """Return the costs of those results of a run that have the measurement `needed`."""
    results = [result for result in run["results"] if result.get(needed) is not None]
    return Line(run["label"], [(result["length"], cost(result)) for result in results])
