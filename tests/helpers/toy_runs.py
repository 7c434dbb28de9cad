"""Tiny corpora and recipes for tests of training, and training that is killed at a chosen file operation."""

from __future__ import annotations

import json
import os
import random
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
from helpers.countdown import kill_at

from mnemo.data.prepare import prepare
from mnemo.files import tensor_file
from mnemo.memory import XL, Plan
from mnemo.model import ModelConfig
from mnemo.model.layers import DropoutConfig
from mnemo.recipes.recipe import DataConfig, EvalConfig, Recipe, TrainConfig
from mnemo.training import Data, Outcome, Scored, checkpoint_schedule, create_run, train
from mnemo.training.data import open_data
from mnemo.training.metrics_log import JsonLines


@cache
def toy(name: str = "toy") -> str:
    """A corpus of characters with three documents in its training split, prepared once."""
    words, draw = ["ab", "bca", "cab", "d"], random.Random(name)
    with tempfile.TemporaryDirectory() as folder:
        for split, count in (("train", 200), ("valid", 60), ("test", 60)):
            text = " ".join(draw.choice(words) for _ in range(count))
            text = text[:100] + "\0" + text[100:170] + "\0" + text[170:]
            (Path(folder) / f"{split}.txt").write_text(text)
        prepare(name, folder, "chars")
    return name


MODEL = ModelConfig(
    vocab_size=6,
    num_layers=2,
    dim=8,
    num_heads=2,
    head_dim=4,
    inner_dim=16,
    memory=Plan(long=XL(length=6)),
    dropout=DropoutConfig.published(0.1, 0.1),
)


TRAIN_COMMAND = [
    *("train", "tiny-bytes", "--data.corpus", "toy", "--train.steps", "200", "--train.batch", "2"),
    *("--train.segment", "4", "--model.num-layers", "1", "--model.dim", "8", "--model.num-heads", "1"),
    *("--model.head-dim", "4", "--model.inner-dim", "8", "--model.memory.long.length", "4"),
    *("--train.log-every", "1", "--train.eval-every", "50", "--train.checkpoint-every", "7", "--evaluation.batch", "2"),
]
"""Arguments of the command line for 200 short steps on `toy()`."""


def recipe(model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Twelve steps with an evaluation every 4 and a checkpoint every 3; dropout and memory are on."""
    settings = {"steps": 12, "batch": 3, "segment": 8, "log_every": 2, "eval_every": 4, "checkpoint_every": 3}
    return Recipe(
        model=replace(MODEL, **(model or {})),
        data=DataConfig(corpus=toy(), **(data or {})),
        train=TrainConfig(**{**settings, **changes}),
        evaluation=EvalConfig(batch=2, limit=60),
    )


def exact(**changes: Any) -> dict[str, Any]:
    """Changes that make losses reproducible by hand: no dropout, float64."""
    return {"model": {"dropout": DropoutConfig()}, "precision": "fp64", **changes}


def run(folder: Path, *, of: Recipe | None = None, **options: Any) -> Outcome:
    create_run(of or recipe(), folder)
    return train(folder, **options)


def scored_as(losses: list[float], of: Recipe) -> Data:
    """The recipe's corpus, with evaluations that give these losses."""
    left = iter(losses)
    return replace(open_data(of), score=lambda model, show: Scored(next(left), 10))


def metrics(folder: Path) -> bytes:
    return (folder / "metrics.jsonl").read_bytes()


def losses(folder: Path) -> list[float]:
    """All training losses and gradient norms of a run, in order."""
    lines = map(json.loads, metrics(folder).splitlines())
    return [line[key] for line in lines for key in ("loss", "grad_norm") if line.get(key) is not None]


def train_and_die(folder: str, data: str, operation: int) -> None:
    """Train in this process until it is killed at the given file operation."""
    os.environ["MNEMO_DATA"] = data
    checkpoint_schedule.LARGEST_SHARE = float("inf")  # recipes with a short interval save after every step
    die_at(operation)
    train(Path(folder))


def die_at(operation: int) -> None:
    """Kill this process at its file operation of this number."""
    mortal = kill_at(operation)
    os.fsync = mortal(os.fsync)
    Path.rename = mortal(Path.rename)
    Path.replace = mortal(Path.replace)
    tensor_file.save_file = mortal(tensor_file.save_file, _write_half)
    JsonLines.append = mortal(JsonLines.append, _append_half)


def _write_half(tensors: Any, path: Path, metadata: Any) -> None:
    path.write_bytes(safetensors.torch.save(tensors, metadata)[:500])


def _append_half(lines: Any, record: Any) -> None:
    with lines._path.open("ab") as file:
        file.write(b'{"step": 3, "spl')
