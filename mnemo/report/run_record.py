"""A run as a JSON object: its state, size and best score (`mnemo runs --json`, and the studio's list of runs)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from mnemo.report.loss_units import loss_unit
from mnemo.report.run_summary import plan_words
from mnemo.training.run_states import RunState
from mnemo.units import bits


def run_record(run: RunState) -> dict[str, Any]:
    recipe = None if run.header is None else run.header.recipe
    corpus = {} if run.header is None else run.header.corpus
    in_bits = run.best is not None and loss_unit(corpus.get("unit")).of is bits
    return {
        "name": run.name,
        "path": str(run.path),
        "state": run.state,
        "note": run.note,
        "step": run.step,
        "steps": None if recipe is None else recipe.train.steps,
        "best": None if run.best is None else run.best._asdict(),
        "bpc": bits(run.best.loss) if in_bits and run.best is not None else None,
        "corpus": corpus.get("name"),
        "memory": None if recipe is None else plan_words(recipe.model),
        "bytes": run.num_bytes,
        "written": datetime.fromtimestamp(run.written).astimezone().isoformat(timespec="seconds"),
    }
