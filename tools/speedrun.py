"""The record of a speedrun from the folder of its run: all numbers as JSON, and the learning curves as a picture.

    python -m tools.speedrun RUN FACTS.json NUMBERS.json PICTURE.svg

Scores are those that `mnemo eval` has stored in the run. FACTS.json has what the run does not know:

    {"what": "novels, preset speedrun-novels, 38M parameters, one seed; bits per byte", "unit": "byte",
     "hardware": "one NVIDIA H200 alone", "date": "2026-11-18", "reference": ["the goal: 1.34", 1.34],
     "versions": {"mnemo": "0.2.0, commit 574cc742", "torch": "2.11.0+cu130", "triton": "3.6.0"}}

`reference` is a level that the picture shows, or null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnemo.config import to_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json
from mnemo.files.safe_load import load_object
from mnemo.model.layers import DropoutConfig
from mnemo.report.files import read_lines
from mnemo.report.plots import Line, line_figure
from mnemo.report.runs import Metric, Run, read_run
from mnemo.report.svg import standalone
from mnemo.storage.run_header import METRICS, find_run
from mnemo.training.training_log import TIMING, training_seconds
from mnemo.units import bits

FACTS = ("what", "unit", "hardware", "versions", "date", "reference")
POINTS = 35
"""Of the training curve, at least, if the run has as many."""
SCORED_BY = ("split", "memory", "batch", "segment", "context", "clamp", "tokens")


def record(run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    recipe, scores = run.recipe, _scores(run)
    if recipe is None:
        raise MnemoError(f"{run.path}: {'; '.join(run.notes)}")
    if run.rollbacks:
        raise MnemoError(f"{run.path} went back after a divergence: that time counts, and timing.jsonl lacks it")
    if not any(score["split"] == "test" and score["batch"] == 1 for score in scores):
        raise MnemoError(f"{run.path} has no test score in one row: run mnemo eval --split test --batch 1")
    symbols = recipe.train.batch * recipe.train.segment
    return {
        "format_version": 1,
        **{name: facts[name] for name in FACTS if name != "reference"},
        "parameters": run.parameters,
        "recipe": to_json(recipe),
        "steps": run.last_step,
        "symbols": run.last_step * symbols,
        "symbols_per_second": round(run.tokens_per_second or math.nan),
        "training_seconds": round(training_seconds(run.path / TIMING, symbols), 1),
        "seconds_in_all": run.seconds,
        "largest_grad_norm_after_warmup": _largest_norm(run, recipe.train.schedule.warmup),
        "scores": scores,
        "valid": {str(each.step): _rounded(each.loss) for each in run.valid},
        "train": {str(each.step): _rounded(each.loss) for each in _thinned(run.train)},
    }


def picture(run: Run, slug: str, facts: dict[str, Any]) -> str:
    _, *train = _thinned(run.train)  # the first loss is so high that the others would look alike
    dropped = run.recipe is not None and run.recipe.model.dropout != DropoutConfig()
    lines = [
        Line("training, with dropout" if dropped else "training", [(each.step, _rounded(each.loss)) for each in train]),
        Line("valid", [(each.step, _rounded(each.loss)) for each in run.valid]),
    ]
    reference = tuple(facts["reference"]) if facts["reference"] else None
    y_label = f"bits per {facts['unit']}"
    figure = line_figure(slug, facts["what"], "", lines, x_label="step", y_label=y_label, reference=reference)
    return standalone(figure.svg)


def _largest_norm(run: Run, warmup: int) -> float | None:
    """Of the gradients that metrics.jsonl has; it has none where one was not finite."""
    lines = [line for _, line in read_lines(run.path / METRICS, run.notes)]
    found = [line["grad_norm"] for line in lines if line.get("grad_norm") and line["step"] > warmup]
    return round(max(found), 3) if found else None


def _scores(run: Run) -> list[dict[str, Any]]:
    found = [load_json(path)["score"] for path in (run.path / "results").glob("score-*.json")]
    scores = [{name: score[name] for name in SCORED_BY} | {"bpc": _rounded(score["loss"])} for score in found]
    return sorted(scores, key=lambda score: [score[name] for name in ("split", "tokens", "batch", "memory")])


def _thinned(metrics: Sequence[Metric]) -> list[Metric]:
    """Evenly spaced lines, the last one among them."""
    every = max(1, len(metrics) // POINTS)
    return list(metrics[::-1][::every][::-1])


def _rounded(loss: float) -> float:
    return round(bits(loss), 4)


def write(run_name: str, facts_file: str, numbers: str, drawing: str) -> None:
    run, facts = read_run(find_run(run_name), run_name), load_object(Path(facts_file))
    if missing := [name for name in FACTS if name not in facts]:
        raise MnemoError(f"{facts_file} lacks {', '.join(missing)}")
    Path(numbers).write_text(json.dumps(record(run, facts), indent=1) + "\n")
    Path(drawing).write_text(picture(run, Path(drawing).stem, facts))
    print(numbers, drawing, sep="\n")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    try:
        write(*sys.argv[1:])
    except MnemoError as error:
        sys.exit(f"tools.speedrun: error: {error}")
