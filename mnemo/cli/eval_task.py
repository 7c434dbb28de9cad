"""`mnemo eval` of a run that was trained on a task: the share of right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemo.cli import console, opened_run
from mnemo.data.tasks import AnyTask
from mnemo.evaluation.task_accuracy import AnswerScore, answer
from mnemo.storage.run_folder import open_run

if TYPE_CHECKING:
    from mnemo.cli.eval import Args


def score_answers(args: Args, task: AnyTask) -> int:
    run = open_run(opened_run.chosen_run(args), args.which, args.device)
    half = opened_run.half_precision(args.precision, run)
    with opened_run.computing_in(half, run):
        score = answer(
            run.model,
            task,
            segment=run.recipe.train.segment,
            split=args.split or "test",
            batch=args.batch,
            limit=args.limit,
            published=args.published,
            progress=console.progress,
        )
    content = {
        "split": score.split,
        "which": args.which,
        "precision": "bf16" if half else "fp32",
        "kind": "answers",
        "score": score.to_json(),
    }
    folder = opened_run.result_folder(run)
    files = [] if folder is None else [str(opened_run.save_result(folder, _name(score, args.limit), run, content))]
    if args.json:
        console.print_json(content | {"step": run.step, "files": files})
    else:
        _print(score, files)
    return 0


def _name(score: AnswerScore, limit: int | None) -> str:
    parts = ["answers", score.split, *(["published"] if score.published else []), *([f"limit{limit}"] if limit else [])]
    return "-".join(parts)


def _print(score: AnswerScore, files: list[str]) -> None:
    headers = ("task", "split", "segments", "samples", "characters", "answers")
    cut = f"{score.segments} x {score.segment}"
    accuracies = f"{score.character_accuracy:.4f}", f"{score.answer_accuracy:.4f}"
    console.table([(score.task, score.split, cut, f"{score.samples:,}", *accuracies)], headers)
    if score.published:
        print("measured as the released code does, which helps the model: see docs/tasks.md")
    for path in files:
        print(f"saved {path}")
