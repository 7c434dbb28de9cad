"""Run folders with invented metrics, for tests of the report."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mnemo.config import to_json
from mnemo.memory import Plan
from mnemo.memory.xl import XL
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import Recipe, TrainConfig


def recipe(memory: int = 64, num_layers: int = 4, **plan: Any) -> Recipe:
    model = ModelConfig(num_layers=num_layers, dim=64, num_heads=2, memory=Plan(long=XL(length=memory), **plan))
    return Recipe(model=model, train=TrainConfig(steps=400, segment=64))


def make_run(
    folder: Path,
    run_recipe: Recipe,
    *,
    unit: str = "byte",
    corpus: str = "python",
    floor: float = 1.5,
    steps: int = 400,
) -> Path:
    """A run whose loss falls towards `floor` nats, logged every 10 steps and validated every 50."""
    folder.mkdir(parents=True)
    header = {
        "format_version": 1,
        "mnemo_version": "0.1.0",
        "torch_version": "2.13.0",
        "preset": "tiny-bytes",
        "corpus": {"name": corpus, "unit": unit, "vocab_size": 256},
        "recipe": to_json(run_recipe),
    }
    write_json(folder / "recipe.json", header)
    losses = {step: floor + 4 * math.exp(-step / 80) for step in range(10, steps + 1, 10)}
    metrics = [
        {"step": step, "split": "train", "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens": step * 1024}
        for step, loss in losses.items()
    ]
    metrics += [
        {"step": step, "split": "valid", "loss": loss + 0.05, "tokens": 20000}
        for step, loss in losses.items()
        if step % 50 == 0
    ]
    write_lines(folder / "metrics.jsonl", metrics)
    timing = [{"step": step, "seconds": step / 20, "tokens_per_second": 20000.0 + step} for step in losses]
    write_lines(folder / "timing.jsonl", timing)
    return folder


def score(memory: int, loss: float, **more: Any) -> dict[str, Any]:
    return {"split": "valid", "loss": loss, "memory": memory, "segment": 64, "tokens": 20000, **more}


def write_result(folder: Path, name: str, **content: Any) -> None:
    (folder / "results").mkdir(exist_ok=True)
    write_json(folder / "results" / f"{name}.json", {"format_version": 1, **content})


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
