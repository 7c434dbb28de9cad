"""The record of a speedrun from the folder of its run: all numbers as JSON, and the learning curves as a picture.

    python -m tools.speedrun RUN NAME FACTS.json

writes docs/measurements/h200-NAME.json and docs/pictures/speedrun-NAME.svg. Scores are those that `mnemo eval` has
stored in the run. FACTS.json is an object with `what`, `hardware`, `versions`, `date`, and a `reference` for the
picture: a list of a label and its bits per symbol, or null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mnemo.config import to_json
from mnemo.files.json_file import load_json
from mnemo.files.safe_load import load_object
from mnemo.report.files import read_lines
from mnemo.report.plots import Line, line_figure
from mnemo.report.runs import Metric, Run, read_run
from mnemo.report.svg import standalone
from mnemo.storage.run_header import METRICS, find_run

DOCS = Path(__file__).parents[1] / "docs"
WARMUP = 200
"""Steps whose gradient norms do not count: a learning rate that rises has large ones."""
LINES = 35
"""Points of the training curve that the record keeps."""


def record(run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    recipe = run.recipe
    assert recipe is not None and run.parameters is not None, run.notes
    symbols = recipe.train.batch * recipe.train.segment
    rates = [rate for _, _, rate in run.timing]
    return {
        "format_version": 1,
        **{name: facts[name] for name in ("what", "hardware", "versions", "date")},
        "parameters": run.parameters,
        "recipe": to_json(recipe),
        "steps": run.last_step,
        "symbols": run.last_step * symbols,
        "symbols_per_second": round(median(rates)),
        "training_seconds": round(sum(_intervals(run, symbols)), 1),
        "seconds_in_all": run.seconds,
        "rollbacks": run.rollbacks,
        "largest_grad_norm_after_200": _largest_norm(run),
        "scores": _scores(run),
        "valid": {str(each.step): _bits(each.loss) for each in run.valid},
        "train": {str(each.step): _bits(each.loss) for each in _thinned(run.train)},
    }


def picture(run: Run, name: str, facts: dict[str, Any]) -> str:
    lines = [
        Line("training, with dropout", [(each.step, _bits(each.loss)) for each in _thinned(run.train)[1:]]),
        Line("valid", [(each.step, _bits(each.loss)) for each in run.valid]),
    ]
    reference = tuple(facts["reference"]) if facts["reference"] else None
    figure = line_figure(
        f"speedrun-{name}", facts["what"], "", lines, x_label="step", y_label="bits per symbol", reference=reference
    )
    return standalone(figure.svg)


def _intervals(run: Run, symbols: int) -> list[float]:
    """Seconds of training between two lines of timing.jsonl, without compilation, evaluation and saving."""
    steps = [0, *(step for step, _, _ in run.timing)]
    return [(step - before) * symbols / rate for before, (step, _, rate) in zip(steps, run.timing, strict=False)]


def _largest_norm(run: Run) -> float:
    found = [line for _, line in read_lines(run.path / METRICS, run.notes) if line.get("split") == "train"]
    return round(max(line["grad_norm"] for line in found if line["step"] > WARMUP), 3)


def _scores(run: Run) -> list[dict[str, Any]]:
    files = sorted((run.path / "results").glob("score-*.json"))
    found = [load_json(path)["score"] for path in files]
    names = ("split", "memory", "batch", "tokens")
    scores = [{name: score[name] for name in names} | {"bpc": _bits(score["loss"])} for score in found]
    return sorted(scores, key=lambda score: [score[name] for name in ("split", "tokens", "batch", "memory")])


def _thinned(metrics: Sequence[Metric]) -> list[Metric]:
    """Evenly spaced lines, the last one among them."""
    every = max(1, len(metrics) // LINES)
    return list(metrics[::-1][::every][::-1])


def _bits(loss: float) -> float:
    return round(loss / math.log(2), 4)


if __name__ == "__main__":
    folder, name, path = sys.argv[1:]
    run, facts = read_run(find_run(folder), name), load_object(Path(path))
    (DOCS / "measurements" / f"h200-{name}.json").write_text(json.dumps(record(run, facts), indent=1) + "\n")
    (DOCS / "pictures" / f"speedrun-{name}.svg").write_text(picture(run, name, facts))
