"""Score a run on a split of its corpus: bits per symbol and perplexity, at any memory and segment length; or, of a run
on a task, how many of its answers are right.

The numbers go to stdout and, as JSON, into the run's `results` folder; sweeps and losses by position also as a plot.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from mnemo.cli import console, runs
from mnemo.cli.answering import score_answers
from mnemo.cli.plots import Curve, save_curve
from mnemo.cli.runs import BITS_PER_SYMBOL, OpenedRun, Precision, Which
from mnemo.data.corpus import Corpus, Split
from mnemo.data.tasks import AnyTask
from mnemo.errors import MnemoError
from mnemo.evaluation.perplexity import (
    TEMPERATURES,
    Documents,
    LengthSearch,
    Order,
    Score,
    bits,
    evaluate_at,
    find_length,
    perplexity,
    sweep_memory,
)
from mnemo.memory.state import Start
from mnemo.recipes.recipe import EvalConfig
from mnemo.storage.checkpoint import LoadedRun, find_run, read_header


@dataclass(frozen=True, kw_only=True)
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """A run's folder, or its name under runs/."""
    split: Literal["valid", "test", "train"] | None = None
    """Which part of the corpus or task; valid of a corpus and test of a task when left out."""
    memory: int | None = None
    """Memory length of the long-range layers; as the recipe says when left out."""
    segment: int | None = None
    """Segment length (of a sliding window: its length)."""
    context: int | None = None
    """Tokens before each segment that are encoded again."""
    batch: int | None = None
    """Rows that are read side by side, each from a cold start; 1 gives the lowest loss."""
    clamp: int | None = None
    """Largest distance that relative positions tell apart."""
    same_length: bool = False
    """Let every token attend to equally many others."""
    sweep_memory: str | None = None
    """Score at each of these memory lengths, such as 0,64,128."""
    find_length: bool = False
    """Lengthen the attention until the gain in perplexity is under 0.1%, then find the shortest that is as good."""
    sliding_window: bool = False
    """Predict every token from a full window of its own, without memory (the vanilla model's way; slow)."""
    no_memory: bool = False
    """Switch the memory of all layers off."""
    by_position: bool = False
    """Also tell the loss at each position of a segment."""
    documents: Literal["ignore", "reset"] | None = None
    """Start every document with an empty memory, or let the text run on; as trained when left out."""
    start: Start | None = None
    """What the memory first holds: nothing, or zeros that are attended to; as the run says when left out."""
    temperature: float | None = None
    """Divide logits by this number."""
    fit_temperature: Literal["valid"] | None = None
    """Find the temperature that suits this split best, and score with it and with 1."""
    limit: int | None = None
    """Only the first N symbols."""
    published: bool = False
    """Of a task: measure accuracy as the released code does, with right symbols given and fewer samples."""
    which: Which = "best"
    """The checkpoint with the lowest validation loss, or the last one."""
    precision: Precision = "auto"
    """Compute in fp32 or bf16; auto takes bf16 on a GPU where the run was trained so."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes a GPU where there is one."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    _check(args)
    task = read_header(find_run(args.run)).recipe.data.task
    if task is not None:
        return _answer(args, task)
    if args.published:
        raise MnemoError(f"--published is for runs on a task; {args.run} was trained on a text")
    args = replace(args, split=args.split or "valid")
    assert args.split is not None
    opened, corpus = runs.open_with_corpus(args.run, args.which, args.device)
    if args.find_length and args.split == "test":
        print("mnemo: warning: a length chosen on test flatters the score there: choose on valid", file=sys.stderr)
    task = _Task(args, opened, corpus)
    device = next(opened.run.model.parameters()).device.type
    with nullcontext() if task.half is None else torch.autocast(device, task.half):
        if args.sweep_memory is not None:
            task.sweep(_lengths(args.sweep_memory))
        elif args.find_length:
            task.find_length()
        elif args.fit_temperature is not None:
            task.fit_temperature(args.fit_temperature)
        else:
            task.score()
    return 0


def _answer(args: Args, task: AnyTask) -> int:
    answering = ("run", "split", "batch", "limit", "published", "which", "precision", "device", "json")
    for field in fields(args):
        if field.name not in answering and getattr(args, field.name) != field.default:
            raise MnemoError(f"--{field.name.replace('_', '-')} is for texts; {args.run} was trained on a task")
    return score_answers(
        args.run,
        task,
        split=args.split or "test",
        batch=args.batch,
        limit=args.limit,
        published=args.published,
        which=args.which,
        precision=args.precision,
        device=args.device,
        json=args.json,
    )


def _check(args: Args) -> None:
    modes = {
        "--sweep-memory": args.sweep_memory is not None,
        "--find-length": args.find_length,
        "--sliding-window": args.sliding_window,
        "--no-memory": args.no_memory,
        "--memory": args.memory is not None,
    }
    chosen = [name for name, on in modes.items() if on]
    if len(chosen) > 1:
        raise MnemoError(f"{chosen[0]} and {chosen[1]} exclude each other")
    if args.by_position and chosen and chosen[0] in ("--sweep-memory", "--find-length", "--sliding-window"):
        raise MnemoError(f"--by-position is for one score over segments, not for {chosen[0]}")
    searches = [name for name in ("--sweep-memory", "--find-length") if name in chosen]
    if args.temperature is not None and (searches or args.fit_temperature):
        raise MnemoError(f"--temperature and {(*searches, '--fit-temperature')[0]} exclude each other")
    if args.fit_temperature and (searches or args.by_position):
        raise MnemoError(f"--fit-temperature and {(*searches, '--by-position')[0]} exclude each other")
    without = [name for name in ("--sliding-window", "--no-memory") if name in chosen]
    if args.documents == "reset":
        without.append("--documents reset")
    if args.start == "zeros" and without:
        raise MnemoError(f"--start zeros and {without[0]} exclude each other")


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        raise MnemoError(f"--sweep-memory takes lengths such as 0,64,128, not '{text}'") from None
    if min(lengths) < 0:
        raise MnemoError(f"memory length {min(lengths)} is negative")
    return sorted(set(lengths))


class _Task:
    """One evaluation with everything it needs; each kind prints its table and leaves its files."""

    def __init__(self, args: Args, opened: OpenedRun, corpus: Corpus) -> None:
        self.args, self.opened, self.corpus = args, opened, corpus
        self.split = corpus.split(args.split or "valid")
        self.model, recipe = opened.run.model, opened.run.recipe
        self.half = runs.half_precision(args.precision, opened.run)
        self.config = _config(args, recipe.test)
        self.segment, self.context = recipe.train.segment, recipe.train.context
        self.trained_memory = max(recipe.model.memory.lengths(recipe.model.num_layers))
        whole_text = args.sliding_window or args.documents is not None
        self.order: Order = "contiguous" if whole_text else recipe.data.order
        self.documents: Documents = args.documents or ("ignore" if args.sliding_window else recipe.data.documents)
        self.start: Start = _start(args, opened.run, self.documents, self.order)
        self.in_bits = opened.unit in BITS_PER_SYMBOL

    def at(self, split: Split, temperatures: Sequence[float]) -> list[Score]:
        return evaluate_at(
            self.model,
            split,
            self.config,
            temperatures,
            segment=self.segment,
            context=self.context,
            documents=self.documents,
            order=self.order,
            start=self.start,
            sliding=self.args.sliding_window,
            no_memory=self.args.no_memory,
            progress=console.progress,
        )

    def fit_temperature(self, fitted_on: str) -> None:
        tried = self.at(self.corpus.split(fitted_on), TEMPERATURES)
        best = min(tried, key=lambda score: score.loss)
        scores = self.at(self.split, (1.0, best.temperature))
        name = f"temperature-{self._settings()}-{_lengths_of(best)}"
        content = {
            "kind": "temperature",
            "fitted_on": fitted_on,
            "temperature": best.temperature,
            "tried": [[score.temperature, score.loss] for score in tried],
            "scores": [score.to_json() for score in scores],
        }
        remark = f"temperature {best.temperature:g}, fitted on {fitted_on} (ppl {best.perplexity:.3f} there)"
        self._finish(name, content, scores, None, remark)

    def score(self) -> None:
        (score,) = self.at(self.split, (1.0 if self.args.temperature is None else self.args.temperature,))
        kind = "positions" if self.args.by_position else "score"
        name = f"{kind}-{self._settings()}-{_lengths_of(score)}"
        curve = self._positions_curve(score) if self.args.by_position else None
        self._finish(name, {"kind": kind, "score": score.to_json(self.args.by_position)}, [score], curve)

    def sweep(self, lengths: Sequence[int]) -> None:
        config = self.model.config
        if not any(config.memory.lengths(config.num_layers, 1)):
            raise MnemoError("this model's memory has no length: --sweep-memory would score the same model every time")
        scores = sweep_memory(
            self.model,
            self.split,
            self.config,
            lengths,
            segment=self.segment,
            context=self.context,
            documents=self.documents,
            order=self.order,
            start=self.start,
            progress=console.progress,
        )
        name = f"sweep-{self._settings()}-s{scores[0].segment}"
        curve = self._curve(
            scores,
            [score.memory for score in scores],
            x_label="memory length (tokens)",
            mark=self.trained_memory,
            mark_label=f"trained with {self.trained_memory}",
        )
        self._finish(name, {"kind": "sweep", "scores": [score.to_json() for score in scores]}, scores, curve)

    def find_length(self) -> None:
        found = find_length(
            self.model,
            self.split,
            self.config,
            segment=self.segment,
            context=self.context,
            documents=self.documents,
            order=self.order,
            start=self.start,
            progress=console.progress,
        )
        name = f"find-length-{self._settings()}-s{found.initial.segment}"
        curve = self._curve(
            found.tried,
            [score.attention for score in found.tried],
            x_label="attention length: memory and segment (tokens)",
            mark=found.shortest.attention,
            mark_label=f"shortest within {found.tolerance:.1%} of the best: {found.shortest.attention}",
        )
        self._finish(name, _found_json(found), found.tried, curve, _tell_found(found, self.in_bits))

    def _finish(
        self, name: str, content: dict[str, Any], scores: Sequence[Score], curve: Curve | None, remark: str = ""
    ) -> None:
        """Save the result and its plot, then print one or the other form."""
        folder = runs.result_folder(self.opened.run)
        full = "fp64" if self.opened.run.recipe.train.precision == "fp64" else "fp32"
        precision = full if self.half is None else "bf16"
        settings = {"split": self.args.split, "which": self.args.which, "precision": precision}
        content = settings | {"starts_from": self.start} | content
        files: list[Path] = []
        if folder is not None:
            files.append(runs.save_result(folder, name, self.opened.run, content))
            files += save_curve(curve, folder / name) if curve is not None else []
        if self.args.json:
            console.print_json(content | {"step": self.opened.run.step, "files": [str(path) for path in files]})
            return
        self._print(scores)
        for line in filter(None, (remark, *(f"saved {path}" for path in files))):
            print(line)

    def _print(self, scores: Sequence[Score]) -> None:
        symbol = "bpc" if self.in_bits else "bits"
        told = any(score.temperature != 1 for score in scores)
        rows = [_row(score, symbol, words=self.opened.unit != "word", temperature=told) for score in scores]
        _table([list(row.values()) for row in rows], list(rows[0]))
        if self.start == "zeros":
            print("memory starts full of zeros, which are attended to")
        if self.args.by_position:
            shown = _few(len(scores[0].by_position))
            losses = [f"{self._in_unit(scores[0].by_position[position]):.4f}" for position in shown]
            print()
            _table(
                [[str(position), loss] for position, loss in zip(shown, losses, strict=True)],
                ["position", symbol if self.in_bits else "ppl"],
            )

    def _positions_curve(self, score: Score) -> Curve:
        return Curve(
            x=range(len(score.by_position)),
            y=[self._in_unit(loss) for loss in score.by_position],
            x_label=f"position in the segment, behind a memory of {score.memory}",
            y_label=self._y_label(),
            title=self._title("loss by position"),
        )

    def _curve(self, scores: Sequence[Score], x: Sequence[int], *, x_label: str, mark: int, mark_label: str) -> Curve:
        return Curve(
            x=x,
            y=[self._in_unit(score.loss) for score in scores],
            x_label=x_label,
            y_label=self._y_label(),
            title=self._title("loss by length"),
            mark=mark,
            mark_label=mark_label,
            by_length=True,
        )

    def _in_unit(self, nats: float) -> float:
        return bits(nats) if self.in_bits else perplexity(nats)

    def _y_label(self) -> str:
        return f"bits per {self.opened.unit}" if self.in_bits else "perplexity"

    def _title(self, what: str) -> str:
        return f"{self.opened.run.path.name}: {what}, {self.opened.run.corpus.get('name')} {self.args.split}"

    def _settings(self) -> str:
        """What tells this result's file from others of its kind."""
        args = self.args
        words = {
            "sliding": args.sliding_window,
            "no-memory": args.no_memory,
            "zeros": self.start == "zeros",
            "documents": self.documents == "reset",
            "same-length": args.same_length,
            "last": args.which == "last",
            "bf16": self.half is not None,
        }
        numbers = {"batch": args.batch, "clamp": args.clamp, "limit": args.limit, "temperature": args.temperature}
        parts = [args.split, *(word for word, holds in words.items() if holds)]
        return "-".join([*parts, *(f"{name}{value}" for name, value in numbers.items() if value is not None)])


def _start(args: Args, run: LoadedRun, documents: Documents, order: Order) -> Start:
    """As asked for; else as the run says, where there is a memory that runs on through the text."""
    if args.start is not None:
        return args.start
    runs_on = not (args.sliding_window or args.no_memory) and (documents, order) == ("ignore", "contiguous")
    return run.start if runs_on else "empty"


def _config(args: Args, base: EvalConfig) -> EvalConfig:
    names = ("memory", "segment", "context", "batch", "clamp", "limit")
    given: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return replace(base, **given, same_length=args.same_length or base.same_length)


def _lengths_of(score: Score) -> str:
    context = f"-c{score.context}" if score.context else ""
    return f"m{score.memory}-s{score.segment}{context}"


def _row(score: Score, symbol: str, words: bool, temperature: bool) -> dict[str, str]:
    row = {
        "split": score.split,
        "memory": f"{score.memory:,}",
        "segment": f"{score.segment:,}" + (f"+{score.context}" if score.context else ""),
        "tokens": f"{score.tokens:,}",
        symbol: f"{score.bits_per_token:.4f}",
        "ppl": f"{score.perplexity:.4g}" if score.perplexity >= 1e6 else f"{score.perplexity:.3f}",
    }
    if temperature:
        row["temperature"] = f"{score.temperature:g}"
    if words and score.word_perplexity is not None:
        row["word ppl"] = f"{score.word_perplexity:,.4g}"
    return row | {"tok/s": f"{score.tokens / score.seconds:,.0f}" if score.seconds else "-"}


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> None:
    """A table whose columns are all flush right, headers too."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    first, *others = ([cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in (headers, *rows))
    console.table(others, first)


def _few(count: int) -> list[int]:
    """The first positions, doublings of them, and the last."""
    doublings = [2**i for i in range(count.bit_length()) if 2**i < count - 1]
    return sorted({0, *doublings, count - 1})


def _found_json(found: LengthSearch) -> dict[str, Any]:
    parts = {name: getattr(found, name).to_json() for name in ("initial", "best", "shortest")}
    return {"kind": "find-length", **parts, "tolerance": found.tolerance, "tried": [s.to_json() for s in found.tried]}


def _tell_found(found: LengthSearch, in_bits: bool) -> str:
    def told(score: Score) -> str:
        extra = f" ({score.bits_per_token:.4f} bpc)" if in_bits else ""
        return f"ppl {score.perplexity:.3f}{extra}"

    return (
        f"at the training length {found.initial.attention}: {told(found.initial)}; "
        f"best: {told(found.best)} at {found.best.attention}; "
        f"shortest attention within {found.tolerance:.1%} of it: {found.shortest.attention}"
    )
