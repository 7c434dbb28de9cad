"""The record of a speedrun from the folders of its runs: all numbers as JSON, and the learning curves as a picture.

    python -m tools.speedrun RUN [RUN ...] FACTS.json NUMBERS.json PICTURE.svg

Each run has its own seed, and all have the same recipe. If NUMBERS.json is there already, the runs are added to it; a
run replaces one of its seed. Scores are those that `mnemo eval` has stored in the runs. FACTS.json has what the runs do
not know:

    {"what": "novels, preset speedrun-novels, 38M parameters; bits per byte", "unit": "byte",
     "hardware": "one NVIDIA H200 alone", "date": "2026-11-18", "reference": ["the goal: 1.34", 1.34],
     "versions": {"mnemo": "0.2.0, commit 574cc742", "torch": "2.11.0+cu130", "triton": "3.6.0"}}

`reference` is a level that the picture shows, or null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnemo.config import from_json, to_json
from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json
from mnemo.files.safe_load import load_object
from mnemo.model.layers import DropoutConfig
from mnemo.papers.records import counting_score
from mnemo.recipes.recipe import Recipe
from mnemo.report.files import read_lines
from mnemo.report.plots import Line, line_figure
from mnemo.report.runs import Metric, Run, read_run
from mnemo.report.svg import standalone
from mnemo.storage.run_header import METRICS, find_run
from mnemo.training.training_log import TIMING, training_seconds
from mnemo.units import bits

SHARED, OWN = ("what", "unit", "reference"), ("hardware", "versions", "date")
"""Facts of a record, and of each of its runs."""
NEEDED_VERSIONS = ("mnemo", "torch", "triton")
POINTS = 35
"""Of the training curve, at least, if the run has as many."""
SCORED_BY = ("split", "memory", "batch", "segment", "context", "clamp", "tokens")
PLAIN = {"temperature": 1.0, "sliding": False, "starts_from": "empty"}
"""Of scores in a record. A run of an older version may not tell."""


def record(runs: Sequence[Run], facts: dict[str, Any], known: dict[str, Any] | None = None) -> dict[str, Any]:
    """The record of some runs, and of those of a known record."""
    recipe = _shared_recipe(runs, known)
    symbols = recipe.train.steps * recipe.train.batch * recipe.train.segment
    by_seed = {each["seed"]: each for each in (known or {"runs": []})["runs"]}
    by_seed |= _by_seed(runs, facts)
    return {
        **(known or {}),
        "format_version": 1,
        **{name: facts[name] for name in SHARED},
        "parameters": runs[0].parameters,
        "recipe": to_json(recipe),
        "steps": recipe.train.steps,
        "symbols": symbols,
        "runs": [by_seed[seed] for seed in sorted(by_seed)],
    }


def _by_seed(runs: Sequence[Run], facts: dict[str, Any]) -> dict[int, dict[str, Any]]:
    made: dict[int, dict[str, Any]] = {}
    for run in runs:
        numbers = _numbers(run, facts)
        if numbers["seed"] in made:
            raise MnemoError(f"{run.path} has the seed {numbers['seed']}, as another of the runs does")
        made[numbers["seed"]] = numbers
    return made


def _shared_recipe(runs: Sequence[Run], known: dict[str, Any] | None) -> Recipe:
    """The recipe of all runs, with the first seed."""
    recipes = [from_json(Recipe, known["recipe"])] if known else []
    for run in runs:
        if run.recipe is None:
            raise MnemoError(f"{run.path}: {'; '.join(run.notes)}")
        recipes.append(run.recipe)
        first, seed = recipes[0], recipes[0].train.seed
        if replace(run.recipe, train=replace(run.recipe.train, seed=seed)) != first:
            raise MnemoError(f"{run.path} has another recipe than the other runs of the record")
    return recipes[0]


def _numbers(run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    assert run.recipe is not None
    recipe, scores = run.recipe.train, _scores(run, run.recipe)
    if run.rollbacks:
        raise MnemoError(f"{run.path} went back after a divergence: that time counts, and timing.jsonl lacks it")
    if run.last_step != recipe.steps:
        raise MnemoError(f"{run.path} ended at step {run.last_step:,} of {recipe.steps:,}")
    memory = to_json(run.recipe)["model"]["memory"]["long"]["length"]
    try:
        counted = counting_score({"scores": scores}, memory)
    except MnemoError as error:
        raise MnemoError(f"{run.path}: {error}; remove all but one from {run.path / 'results'}") from None
    if counted is None:
        raise MnemoError(
            f"{run.path} has no score of the whole test set in one row at the memory of training: run mnemo eval "
            f"{run.path} --split test --batch 1 --memory {memory}"
        )
    return {
        "seed": recipe.seed,
        **{name: facts[name] for name in OWN},
        "symbols_per_second": round(run.tokens_per_second or math.nan),
        "training_seconds": round(training_seconds(run.path / TIMING, recipe.batch * recipe.segment), 1),
        "seconds_in_all": run.seconds,
        "largest_grad_norm_after_warmup": _largest_norm(run, recipe.schedule.warmup),
        "scores": scores,
        "valid": {str(each.step): _rounded(each.loss) for each in run.valid},
        "train": {str(each.step): _rounded(each.loss) for each in _thinned(run.train)},
    }


def picture(made: dict[str, Any], slug: str) -> str:
    """Learning curves of all seeds: training of the first one, validation of each."""
    runs, recipe = made["runs"], from_json(Recipe, made["recipe"])
    dropped, limit = recipe.model.dropout != DropoutConfig(), recipe.evaluation.limit
    valid = "valid" if limit is None else f"valid, first {limit / 1e6:g}M {made['unit']}s"
    _, *train = _points(runs[0]["train"])  # the first loss is so high that the others would look alike
    several = [f", seed {run['seed']}" if len(runs) > 1 else "" for run in runs]
    lines = [
        Line(f"training{several[0]}{', with dropout' if dropped else ''}", train),
        *(Line(f"{valid}{seed}", _points(run["valid"])) for seed, run in zip(several, runs, strict=True)),
    ]
    reference = tuple(made["reference"]) if made["reference"] else None
    y_label = f"bits per {made['unit']}"
    figure = line_figure(slug, made["what"], "", lines, x_label="step", y_label=y_label, reference=reference)
    return standalone(figure.svg)


def _points(curve: dict[str, float]) -> list[tuple[float, float]]:
    return [(int(step), value) for step, value in curve.items()]


def _largest_norm(run: Run, warmup: int) -> float | None:
    """Of the gradients that metrics.jsonl has; it has none where one was not finite."""
    lines = [line for _, line in read_lines(run.path / METRICS, run.notes)]
    found = [line["grad_norm"] for line in lines if line.get("grad_norm") and line["step"] > warmup]
    return round(max(found), 3) if found else None


def _scores(run: Run, recipe: Recipe) -> list[dict[str, Any]]:
    """Single scores and those of sweeps, each once, of a text that is read as in training, at any memory length.

    Files of versions that do not tell which part was read are left out.
    """
    files = [load_json(path) for kind in ("score", "sweep") for path in run.path.glob(f"results/{kind}-*.json")]
    found = [file | score for file in files if "limit" in file for score in file.get("scores") or [file["score"]]]
    usual = PLAIN | {
        "segment": recipe.train.segment,
        "context": recipe.train.context,
        "clamp": recipe.test.clamp,
        "same_length": recipe.test.same_length or recipe.model.same_length,
        "documents": recipe.data.documents,
        "order": recipe.data.order,
    }
    kept = [score for score in found if all(score.get(name, value) == value for name, value in usual.items())]
    scores = [
        {name: score[name] for name in SCORED_BY} | {"limit": score["limit"], "bpc": _rounded(score["loss"])}
        for score in kept
    ]
    once = [score for at, score in enumerate(scores) if score not in scores[:at]]
    return sorted(once, key=lambda score: [score[name] for name in ("split", "tokens", "batch", "memory")])


def _thinned(metrics: Sequence[Metric]) -> list[Metric]:
    """Evenly spaced lines, the last one among them."""
    every = max(1, len(metrics) // POINTS)
    return list(metrics[::-1][::every][::-1])


def _rounded(loss: float) -> float:
    return round(bits(loss), 4)


def _facts(path: Path) -> dict[str, Any]:
    facts = load_object(path)
    missing = [name for name in (*SHARED, *OWN) if name not in facts]
    missing += [f"versions of {name}" for name in NEEDED_VERSIONS if name not in facts.get("versions", {})]
    if missing:
        raise MnemoError(f"{path} lacks {', '.join(missing)}")
    return facts


def write(names: Sequence[str], facts_file: str, numbers: str, drawing: str) -> None:
    facts, path = _facts(Path(facts_file)), Path(numbers)
    known = load_object(path) if path.exists() else None
    made = record([read_run(find_run(name), name) for name in names], facts, known)
    replaced = {run["seed"]: run for run in (known or {"runs": []})["runs"]}
    for run in made["runs"]:
        if run["seed"] in replaced and run != replaced[run["seed"]]:
            print(f"replaced: the run of seed {run['seed']}", file=sys.stderr)
    path.write_text(json.dumps(made, indent=1) + "\n")
    Path(drawing).write_text(picture(made, Path(drawing).stem))
    print(numbers, drawing, sep="\n")


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    try:
        write(sys.argv[1:-3], *sys.argv[-3:])
    except MnemoError as error:
        sys.exit(f"tools.speedrun: error: {error}")
