"""Score a run on a split of its corpus: bits per symbol and perplexity, at any memory and segment length. A run that
was trained on a task is scored by the share of right answers.

Results are printed and saved as JSON in the run's `results` folder; sweeps and losses by position are also plotted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from mnemo.cli.run_arguments import Precision, RunArgs, chosen_run, require_corpus_of
from mnemo.data.tasks import AnyTask
from mnemo.errors import MnemoError, require_not_negative, require_positive
from mnemo.memory.configuration import Start
from mnemo.storage.run_header import load_header


@dataclass(frozen=True, kw_only=True)
class Args(RunArgs):
    split: Literal["valid", "test", "train"] | None = None
    """Part of the corpus or task; if unset, valid for a corpus and test for a task."""
    memory: int | None = None
    """Memory length of the long-range layers; if unset, as in the recipe: as in training, unless the preset's paper
    tests at another length."""
    segment: int | None = None
    """Segment length, or length of the sliding window; if unset, as in the recipe."""
    context: int | None = None
    """Tokens before each segment that are encoded again; if unset, as in the recipe."""
    batch: int | None = None
    """Rows of text that are scored side by side, each starting with an empty memory; 1 gives the lowest loss."""
    clamp: int | None = None
    """Largest distance that relative positions distinguish."""
    same_length: bool = False
    """Let every token attend to the same number of tokens."""
    sweep_memory: str | None = None
    """Score at each of these memory lengths, for example 0,64,128."""
    find_length: bool = False
    """Lengthen the attention until perplexity gains less than 0.1%, then find the shortest that is as good."""
    sliding_window: bool = False
    """Predict every token from its own full window, without memory (the vanilla model's protocol; slow)."""
    no_memory: bool = False
    """Turn the memory of all layers off."""
    by_position: bool = False
    """Also show the loss at each position of a segment."""
    documents: Literal["ignore", "reset"] | None = None
    """reset: empty the memory at the start of every document; ignore: keep it; if unset, as in training."""
    start: Start | None = None
    """First memory: empty, or full of zeros that are attended to; if unset, as in the weights' original code."""
    temperature: float | None = None
    """Divide the logits by this number."""
    fit_temperature: Literal["valid"] | None = None
    """Find the temperature with the lowest loss on this split, and score with it and with 1."""
    limit: int | None = None
    """Score only the first N symbols (or samples of a task)."""
    published: bool = False
    """For tasks: measure accuracy as the released code does, with right symbols given and fewer samples."""
    precision: Precision = "auto"
    """Compute in fp32 or bf16, which scores texts faster on CPUs with products in bf16, too; auto: bf16 on a GPU if
    the run was trained in it."""


def run(args: Args) -> int:
    _check(args)
    folder = chosen_run(args)
    args, header = replace(args, run=str(folder)), load_header(folder)
    task = header.recipe.data.task
    if task is not None:
        return _answer(args, task)
    if args.published:
        raise MnemoError(f"--published is for runs on a task; {args.run} was trained on a text")
    require_corpus_of(folder, header.recipe)
    from mnemo.cli.eval_text import score_text

    return score_text(args)


def _answer(args: Args, task: AnyTask) -> int:
    answering = ("run", "split", "batch", "limit", "published", "which", "precision", "device", "json")
    for field in fields(args):
        if field.name not in answering and getattr(args, field.name) != field.default:
            raise MnemoError(f"--{field.name.replace('_', '-')} is for texts; {args.run} was trained on a task")
    from mnemo.cli.eval_task import score_answers

    return score_answers(args, task)


def lengths_of(sweep: str) -> list[int]:
    """The memory lengths of --sweep-memory, in ascending order."""
    try:
        lengths = [int(part) for part in sweep.split(",")]
    except ValueError:
        raise MnemoError(f"--sweep-memory takes lengths such as 0,64,128, not '{sweep}'") from None
    require_not_negative("memory length", min(lengths))
    return sorted(set(lengths))


def _check(args: Args) -> None:
    _check_numbers(args)
    modes = {
        "--sweep-memory": args.sweep_memory is not None,
        "--find-length": args.find_length,
        "--sliding-window": args.sliding_window,
        "--no-memory": args.no_memory,
        "--memory": args.memory is not None,
    }
    chosen = [name for name, on in modes.items() if on]
    if len(chosen) > 1:
        raise MnemoError(f"{chosen[0]} and {chosen[1]} cannot be combined")
    if args.by_position and chosen and chosen[0] in ("--sweep-memory", "--find-length", "--sliding-window"):
        raise MnemoError(f"--by-position is for one score over segments, not for {chosen[0]}")
    searches = [name for name in ("--sweep-memory", "--find-length") if name in chosen]
    if args.temperature is not None and (searches or args.fit_temperature):
        raise MnemoError(f"--temperature and {(*searches, '--fit-temperature')[0]} cannot be combined")
    if args.fit_temperature and (searches or args.by_position):
        raise MnemoError(f"--fit-temperature and {(*searches, '--by-position')[0]} cannot be combined")
    without = [name for name in ("--sliding-window", "--no-memory") if name in chosen]
    if args.documents == "reset":
        without.append("--documents reset")
    if args.start == "zeros" and without:
        raise MnemoError(f"--start zeros and {without[0]} cannot be combined")


def _check_numbers(args: Args) -> None:
    positive = {
        "segment length": args.segment,
        "batch": args.batch,
        "clamp": args.clamp,
        "temperature": args.temperature,
        "limit": args.limit,
    }
    for name, value in positive.items():
        require_positive(name, value)
    require_not_negative("memory length", args.memory)
    if args.sweep_memory is not None:
        lengths_of(args.sweep_memory)
