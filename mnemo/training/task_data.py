"""Training on a task: each update computes all segments of a batch of samples; validation scores the answers."""

from __future__ import annotations

import torch

from mnemo.config import digest
from mnemo.data.tasks import AnyTask, TaskStream, samples, segments
from mnemo.errors import MnemoError
from mnemo.model import Model
from mnemo.progress import ShowProgress
from mnemo.recipes.recipe import EvalConfig, Recipe


def task_info(task: AnyTask) -> dict[str, object]:
    """Description of a task in recipe.json, in place of a corpus."""
    return {
        "name": task.label,
        "unit": "symbol",
        "vocab_size": task.vocab_size,
        "documents": False,
        "fingerprint": digest(task),
    }


def task_stream(recipe: Recipe, task: AnyTask) -> TaskStream:
    train = recipe.train
    return TaskStream(task, train.batch, train.segment, seed=train.seed, leak=recipe.data.leak)


def check_task(recipe: Recipe, task: AnyTask) -> None:
    """Raise MnemoError for recipes whose updates are not whole samples."""
    train, data, evaluation = recipe.train, recipe.data, recipe.evaluation
    depth = task.num_segments(train.segment) - 1
    if train.bptt != depth or (depth and train.bptt_window != "tumbling"):
        raise MnemoError(
            f"a sample of {task.label} is {task.num_tokens} tokens in {depth + 1} segments of {train.segment}, and one "
            f"update: set --train.bptt {depth} --train.bptt-window tumbling"
        )
    text_only = {
        "--data.documents reset": data.documents != "ignore",
        "--data.order sentences": data.order != "contiguous",
        "--data.rotate": data.rotate,
        "--train.context": train.context > 0,
        "--train.loss half": train.loss != "full",
        "--train.vary-segment": train.vary_segment,
        "--evaluation.context": bool(evaluation.context),
        "--evaluation.memory": evaluation.memory is not None,
        "--evaluation.segment": evaluation.segment not in (None, train.segment),
    }
    for flag, is_set in text_only.items():
        if is_set:
            raise MnemoError(f"{flag} is for texts, not for the samples of {task.label}")
    if data.leak and recipe.model.tokens is not None:
        raise MnemoError("--data.leak is for caches: memory tokens start empty with every sample, as published")


@torch.no_grad()
def answer_loss(model: Model, task: AnyTask, config: EvalConfig, segment: int, show: ShowProgress) -> tuple[float, int]:
    """Mean nats per token of the validation set's answers, given all tokens before, and the number of answer tokens.

    `config.limit` counts the tokens of whole samples.
    """
    limit = None if config.limit is None else max(1, config.limit // task.num_tokens)
    count = task.valid if limit is None else min(limit, task.valid)
    device, was_training = next(model.parameters()).device, model.training
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    model.eval()
    try:
        with show(f"scoring {task.label} valid", count, unit="samples") as bar:
            for rows in samples(task, "valid", config.batch, limit):
                state = None
                for inputs, targets in segments(*rows, segment):
                    out, state = model(inputs.to(device), state)
                    total += model.loss(out, targets.to(device)).double().sum()
                    tokens += int((targets >= 0).sum())
                bar.advance(len(rows[0]))
    finally:
        model.train(was_training)
    return float(total) / tokens, tokens
