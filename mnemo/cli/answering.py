"""`mnemo eval` on a run that was trained on a task: how many of its answers are right."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from mnemo.cli import console, runs
from mnemo.cli.runs import Precision
from mnemo.data.tasks import AnyTask, TaskSplit
from mnemo.evaluation.task_accuracy import AnswerScore, answer
from mnemo.storage.run_folder import LoadedRun, Which, open_run


def score_answers(
    name: str,
    task: AnyTask,
    *,
    split: TaskSplit,
    batch: int | None,
    limit: int | None,
    published: bool,
    which: Which,
    precision: Precision,
    device: str,
    json: bool,
) -> int:
    run = open_run(name, which, device)
    half = runs.half_precision(precision, run)
    kind = next(run.model.parameters()).device.type
    with nullcontext() if half is None else torch.autocast(kind, half):
        score = answer(
            run.model,
            task,
            segment=run.recipe.train.segment,
            split=split,
            batch=batch,
            limit=limit,
            published=published,
            progress=console.progress,
        )
    content = {"split": split, "which": which, "precision": "bf16" if half else "fp32", "kind": "answers"}
    files = _save(run, score, content | {"score": score.to_json()}, limit)
    if json:
        console.print_json(content | {"score": score.to_json(), "step": run.step, "files": files})
    else:
        _print(score, files)
    return 0


def _save(run: LoadedRun, score: AnswerScore, content: dict[str, Any], limit: int | None) -> list[str]:
    folder = runs.result_folder(run)
    if folder is None:
        return []
    parts = ["answers", score.split, *(["published"] if score.published else []), *([f"limit{limit}"] if limit else [])]
    return [str(runs.save_result(folder, "-".join(parts), run, content))]


def _print(score: AnswerScore, files: list[str]) -> None:
    headers = ("task", "split", "segments", "samples", "characters", "answers")
    cut = f"{score.segments} x {score.segment}"
    accuracies = f"{score.character_accuracy:.4f}", f"{score.answer_accuracy:.4f}"
    console.table([(score.task, score.split, cut, f"{score.samples:,}", *accuracies)], headers)
    if score.published:
        print("measured as the released code does, which helps the model: see docs/tasks.md")
    for path in files:
        print(f"saved {path}")
