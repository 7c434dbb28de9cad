"""Runs of two or three training steps on a small text, for tests of the command line."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from mnemo.data.known_corpora import Option
from mnemo.data.prepare import prepare
from mnemo.memory import XL, Plan
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import DataConfig, EvalConfig, Recipe, TrainConfig
from mnemo.training import create_run, train

SEGMENT = 8
MODEL = ModelConfig(num_layers=2, dim=16, num_heads=2, head_dim=8, inner_dim=16, memory=Plan(long=XL(length=SEGMENT)))
WORDS = "the cat that saw the dog sat under a tree and slept until the rain came".split()


def sample_text(num_documents: int = 40) -> str:
    """Documents of a few lines, separated by NUL, with a character of two bytes."""
    documents = []
    for i in range(num_documents):
        words = [WORDS[(i * k + k) % len(WORDS)] for k in range(1, 30)]
        documents.append(f"café {i}\n" + " ".join(words) + "\n")
    return "\0".join(documents)


@functools.cache
def tiny_run(tokenizer: Option = "bytes", steps: int = 2, model: ModelConfig = MODEL, segment: int = SEGMENT) -> Path:
    """Folder of a run, which is trained once in a test process."""
    folder = Path(tempfile.mkdtemp(prefix="mnemo-run-"))
    text = folder / "text.txt"
    text.write_text(sample_text(), encoding="utf-8")
    corpus = prepare(f"tiny-{tokenizer}", text, tokenizer)
    recipe = Recipe(
        model=model,
        data=DataConfig(corpus=corpus.name),
        train=TrainConfig(
            steps=steps, batch=2, segment=segment, eval_every=steps, checkpoint_every=steps, device="cpu"
        ),
        evaluation=EvalConfig(batch=2),
        test=EvalConfig(batch=2),
    )
    train(create_run(recipe, folder / "run"))
    return folder / "run"
