"""The content of run folders. Missing and broken parts are left out and named in `notes`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mnemo.config import from_json
from mnemo.errors import MnemoError, shorten
from mnemo.model.shapes import num_parameters
from mnemo.recipes.recipe import Recipe
from mnemo.report.files import Record, is_number, read_json, read_lines
from mnemo.report.results import Results, read_results
from mnemo.report.run_files import why_no_run
from mnemo.storage.overrides import Override, load_overrides, overridden

NO_MEMORY = ("XL", 0)
"""Mechanism and length of a layer without memory."""


@dataclass(frozen=True)
class Metric:
    step: int
    loss: float
    """Nats per token."""


@dataclass
class Run:
    path: Path
    name: str
    color: int = 0
    """Number of its colour, the same in the whole page."""
    recipe: Recipe | None = None
    parameters: int | None = None
    header: Record = field(default_factory=dict)
    """The whole content of recipe.json."""
    overrides: tuple[Override, ...] = ()
    """Changes of the recipe on resume."""
    train: list[Metric] = field(default_factory=list)
    valid: list[Metric] = field(default_factory=list)
    rollbacks: list[str] = field(default_factory=list)
    """What was done after each divergence, a line each."""
    tokens: int | None = None
    """Tokens trained on."""
    seconds: float | None = None
    tokens_per_second: float | None = None
    """Median."""
    lr: float | None = None
    """Learning rate of the last logged step."""
    timing: list[tuple[int, float, float]] = field(default_factory=list)
    """Step, seconds since the start and tokens per second, one for every logged step."""
    results: Results = field(default_factory=Results)
    notes: list[str] = field(default_factory=list)

    @property
    def corpus(self) -> Record:
        corpus = self.header.get("corpus")
        return corpus if isinstance(corpus, dict) else {}

    @property
    def corpus_name(self) -> str:
        if self.corpus.get("name"):
            return str(self.corpus["name"])
        return self.recipe.data.corpus if self.recipe else "unknown corpus"

    @property
    def memory_kind(self) -> tuple[str, ...] | None:
        """Names of the mechanisms that keep something of earlier segments; None if the recipe is unknown."""
        if self.recipe is None:
            return None
        model = self.recipe.model
        pairs = zip(model.memory.memories(model.num_layers), model.memory.lengths(model.num_layers), strict=True)
        named = {(type(memory).__name__, length) for memory, length in pairs}
        kept = {kind for kind, length in named if (kind, length) != NO_MEMORY}
        return tuple(sorted(kept | ({type(model.tokens).__name__} if model.tokens else set())))

    @property
    def best(self) -> Metric | None:
        return min(self.valid, key=lambda metric: metric.loss, default=None)

    @property
    def last_step(self) -> int:
        return max((metric.step for metric in (*self.train, *self.valid)), default=0)


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that exist, at least one, and a note for each path that is no run."""
    notes, found = [], []
    for path in dict.fromkeys(path.resolve() for path in paths):
        problem = why_no_run(path)
        if problem:
            notes.append(problem)
        else:
            found.append(path)
    if not found:
        raise MnemoError(notes[0] if notes else "no run given")
    names = short_names(found)
    runs = [read_run(path, name) for path, name in zip(found, names, strict=True)]
    for run, color in zip(runs, run_colors(runs), strict=True):
        run.color = color
    return runs, notes


def run_colors(runs: Sequence[Run]) -> list[int]:
    """A colour for every kind of memory; for every run, if runs of one kind are shown side by side."""
    kinds = [run.memory_kind for run in runs]
    compared = [(run.corpus_name, kind) for run, kind in zip(runs, kinds, strict=True)]
    if None in kinds or len(set(compared)) < len(compared):
        return list(range(len(runs)))
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return [numbers[kind] for kind in kinds]


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that differ from each other."""
    names = []
    for path in paths:
        depth = 1
        while depth < len(path.parts) and sum(path.parts[-depth:] == other.parts[-depth:] for other in paths) > 1:
            depth += 1
        names.append("/".join(path.parts[-depth:]))
    return names


def read_run(path: Path, name: str) -> Run:
    run = Run(path, name)
    _read_recipe(run)
    _read_metrics(run)
    _read_timing(run)
    run.results = read_results(path / "results", run.notes, run.recipe)
    return run


def _read_recipe(run: Run) -> None:
    header = read_json(run.path / "recipe.json", run.notes)
    if header is None:
        return
    run.header = header
    try:
        recipe = from_json(Recipe, header.get("recipe"), "recipe")
        run.overrides = load_overrides(run.path)
        for override in run.overrides:
            recipe = overridden(recipe, override.changes)
        run.parameters = num_parameters(recipe.model)
        run.recipe = recipe
    except Exception as error:  # a recipe of another version may fail in any way; the curves can still be shown
        reason = " ".join(str(error).split()) or type(error).__name__
        run.notes.append(f"recipe.json: {reason}; size and plan are left out")


def _read_metrics(run: Run) -> None:
    for number, record in read_lines(run.path / "metrics.jsonl", run.notes):
        step, loss, split = record.get("step"), record.get("loss"), record.get("split")
        if split == "event":
            run.rollbacks += _rollback(record)
            continue
        if loss is None and record.get("skipped"):  # every step of the interval was skipped
            continue
        if not is_number(step) or not isinstance(loss, (int, float)) or split not in ("train", "valid"):
            run.notes.append(f"metrics.jsonl, line {number}: no step, split and loss; skipped")
        elif not math.isfinite(loss):
            run.notes.append(f"metrics.jsonl, line {number}: the {split} loss of step {step} is {loss}; not drawn")
        else:
            (run.train if split == "train" else run.valid).append(Metric(int(step), float(loss)))
        tokens, lr = record.get("tokens"), record.get("lr")
        run.lr = float(lr) if is_number(lr) else run.lr
        if split == "train" and is_number(tokens):
            run.tokens = int(tokens)


def _rollback(record: Record) -> list[str]:
    """A line about the rollback in a record; nothing for other events, which later versions may write."""
    step, back_to, factor, until = (record.get(name) for name in ("bad_step", "back_to", "rate_factor", "slower_until"))
    if record.get("event") != "rollback" or not (is_number(step) and is_number(back_to)):
        return []
    slower = ""
    if is_number(factor) and factor < 1 and is_number(until):
        slower = f", at {factor:g} times the learning rate until step {until:,}"
    text = f"{record.get('cause', 'divergence')}: back to step {back_to:,}, batches up to step {step:,} passed over"
    return [shorten(f"{text}{slower}", 300)]


def _read_timing(run: Run) -> None:
    for number, record in read_lines(run.path / "timing.jsonl", run.notes):
        rate, seconds, step = record.get("tokens_per_second"), record.get("seconds"), record.get("step")
        if not is_number(rate) or not is_number(seconds):
            run.notes.append(f"timing.jsonl, line {number}: no seconds and tokens_per_second; skipped")
            continue
        run.timing.append((int(step) if is_number(step) else 0, float(seconds), float(rate)))
        run.seconds = float(seconds)
    run.tokens_per_second = statistics.median(rate for _, _, rate in run.timing) if run.timing else None
