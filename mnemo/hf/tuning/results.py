"""The results of tuning as JSON and as a figure: accuracy by number of segments."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnemo.files import atomic
from mnemo.hf.tuning.accuracy import Accuracy
from mnemo.hf.tuning.curriculum import CurriculumState
from mnemo.hf.tuning.trainer import Say
from mnemo.recipes.tuning import Tuning

RESULTS = "results.json"
FIGURE = "accuracy"


def write_results(options: Tuning, results: Sequence[Accuracy], curriculum: CurriculumState, say: Say) -> None:
    """Write results.json and accuracy.svg, and print the accuracies."""
    content = {
        "options": {name: _plain(value) for name, value in asdict(options).items()},
        "curriculum": curriculum.as_dict(),
        "results": [result.as_dict() for result in results],
    }
    with atomic.new_file(options.out / RESULTS) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for result in results:
        low, high = result.interval
        line = f"{result.segments:>5} x {result.tokens}  {result.share:.3f} [{low:.3f}, {high:.3f}]"
        say(f"{line}  memory cut {result.share_cut:.3f}")
    if importlib.util.find_spec("matplotlib") is None:
        say("no figure: matplotlib is not installed")
    else:
        say(f"figure: {draw_results(options.out / RESULTS)}")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def draw_results(path: Path, target: Path | None = None) -> Path:
    """Draw the figure of a file results.json, by default beside it; `published` points of others are optional."""
    from mnemo.report.files import write_text
    from mnemo.report.plots import Line, line_figure
    from mnemo.report.svg import standalone

    found = json.loads(path.read_text(encoding="utf-8"))
    results, task = found["results"], found["options"]["task"]
    kinds = (("with memory", "accuracy", "interval"), ("memory cut", "accuracy_cut", "interval_cut"))
    lines = [
        Line(
            label,
            [(result["length"], 100 * result[share]) for result in results],
            [100 * result[interval][0] for result in results],
            [100 * result[interval][1] for result in results],
        )
        for label, share, interval in kinds
    ]
    others = found.get("published", [])
    lines += [Line(point["label"], [(point["length"], 100 * point["accuracy"])]) for point in others]
    figure = line_figure(
        FIGURE,
        f"BABILong {task}: accuracy by length",
        "Right answers and 95% intervals (Wilson). Memory cut: the last segment is read without the memory.",
        lines,
        x_label="tokens",
        y_label="right answers, %",
        x_kind="doubling",
        y_max=100,
    )
    target = path.with_name(f"{FIGURE}.svg") if target is None else target
    write_text(target, standalone(figure.svg))
    return target
