"""The work of `mnemo sweep`: train all cells, judge them, write the report."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from mnemo.cli import console
from mnemo.cli.console import format_time
from mnemo.cli.run_arguments import BITS_PER_SYMBOL
from mnemo.cli.sweep import Args
from mnemo.cli.watching import watching
from mnemo.config import from_json, to_json
from mnemo.data.prepare import load
from mnemo.errors import CheckFailed, MnemoError, plural
from mnemo.files.json_file import load_json, write_json
from mnemo.model.shapes import num_parameters
from mnemo.papers.grid import BPC, PPL
from mnemo.papers.pages import verdicts_json
from mnemo.papers.runner import Ran, run_here
from mnemo.papers.store import RESULT, RUN, cell_folder, load_grid, save_grid
from mnemo.papers.sweep import BUDGET, Sweep
from mnemo.recipes.memories import memory_recipe
from mnemo.recipes.recipe import Recipe
from mnemo.recipes.tied_lengths import settle_lengths
from mnemo.report.experiment_page import write_experiment
from mnemo.report.findings import ANSWERS
from mnemo.storage.overrides import differences
from mnemo.storage.run_folder import locked
from mnemo.training import Forwarding, Monitor, Status
from mnemo.training.precision_hint import give_precision_hint
from mnemo.training.training_speed import timed_updates

if TYPE_CHECKING:
    from mnemo.data.own_text import OwnText

SWEEP = "sweep.json"
"""The recipe of a sweep, in its folder."""
LEAST_UPDATES, MOST_UPDATES, MOST_SECONDS = 4, 100, 3.0
"""Updates that a dry run times for each memory: at least four, and more until one of the limits is reached. Load by
other processes comes and goes, so that a few updates in a row can all wait for a busy core."""
NEVER_COMPARED = ("train.device", "train.timeout")


def sweep(args: Args, memories: Sequence[str], name: str, text: OwnText | None, command: str) -> int:
    folder = args.runs / f"sweep-{name}"
    recipes = {memory: settle_lengths(memory_recipe(args.recipe, memory)) for memory in memories}
    seeds = range(args.recipe.train.seed, args.recipe.train.seed + args.seeds)
    _check_folder(folder, args.recipe)
    if args.dry_run:
        return _dry_run(recipes, seeds, folder, args.json)
    with watching() as watcher:
        corpus = load(args.recipe.data.corpus, show=watcher.show) if text is None else text.prepare(watcher.show)
    planned = Sweep(
        name=f"sweep-{name}",
        text=name if text is None else text.files.source,
        recipes=recipes,
        seeds=list(seeds),
        measure=BPC if corpus.tokenizer.unit in BITS_PER_SYMBOL else PPL,
        split="test" if "test" in corpus.splits else "valid",
        command=command,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # two commands would replace each other's sweep.json and page
        is_new = not (folder / SWEEP).exists()
        write_json(folder / SWEEP, {"recipe": to_json(settle_lengths(args.recipe)), "command": command})
        with watching() as watcher:
            if is_new:  # one that goes on keeps its precision
                give_precision_hint(args.recipe, watcher)
            ran = _run(planned, folder, args.recipe.train.device, watcher)
        return _finish(planned, ran, folder, args.json)


def _check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse to continue a sweep with another recipe: its cells could not be compared."""
    if folder.exists() and not (folder / SWEEP).is_file():
        raise MnemoError(f"{folder} exists and is not a sweep: choose another --name")
    if not folder.exists():
        return
    path = folder / SWEEP
    before = from_json(Recipe, load_json(path).get("recipe"), f"{path}: recipe")
    changed = differences(before, settle_lengths(recipe))
    for field in changed.keys() - set(NEVER_COMPARED):
        old, new = changed[field]
        raise MnemoError(
            f"{folder} was begun with another recipe ({field} {old}, now {new}): choose another --name, or repeat the "
            "command with the same values"
        )


def _run(planned: Sweep, folder: Path, device: str, watcher: Monitor) -> Ran:
    monitor = SweepMonitor(planned, folder, watcher)

    def announce(line: str) -> None:
        monitor.count()
        left = monitor.cells_left()
        watcher.note(line if left is None else f"{line}; about {format_time(left)} left")

    return run_here(
        planned.experiment,
        BUDGET,
        folder,
        device=device,
        monitor=monitor,
        print_line=announce,
        reuse_others=False,
    )


class SweepMonitor(Forwarding):
    """Shows the run of a cell, with the time left for the whole sweep in place of that of the run."""

    def __init__(self, planned: Sweep, folder: Path, watcher: Monitor) -> None:
        super().__init__(watcher)
        self._planned, self._folder = planned, folder
        self._seconds: list[float] = []
        self._num_left = 0
        self._guess = 0.0
        """Seconds of the first cell, from its speed so far."""

    def count(self) -> None:
        """Look up which cells are done, and how long they took."""
        found = load_grid(self._folder, self._planned.experiment, BUDGET)
        self._seconds = [result.seconds for result in found.results.cells]
        self._num_left = len(self._planned.grid.cells) - len(self._seconds)

    def cells_left(self) -> float | None:
        """Estimated seconds of all cells without a result; None before the first result."""
        return fmean(self._seconds) * self._num_left if self._seconds else None

    def trained(self, status: Status) -> None:
        if status.step < status.steps:
            self._guess = status.seconds_left / (1 - status.step / status.steps)
        others = max(0, self._num_left - 1) * (fmean(self._seconds) if self._seconds else self._guess)
        super().trained(status._replace(seconds_left=status.seconds_left + others))


def _finish(planned: Sweep, ran: Ran, folder: Path, as_json: bool) -> int:
    experiment = planned.experiment
    if ran.found.results.cells:
        save_grid(folder, experiment, ran.found.results)
    content = planned.page(ran.found)
    page, tables = write_experiment(content, folder), planned.tables(ran.found.results)
    console.drop_lost_output(pipes=ran.interrupted)
    for problem in ran.found.problems:
        print(f"mnemo: left out: {problem}", file=sys.stderr)
    if as_json:
        rows = [dict(zip(table.headers, row, strict=True)) for table in tables for row in table.rows]
        files = {"sweep": str(folder), "page": str(page)}
        numbers = {"memories": planned.numbers(ran.found.results), "table": rows}
        console.print_json({**files, **numbers, **verdicts_json(content.verdicts)})
    else:
        for table in tables:
            console.table(table.rows, table.headers)
        for verdict in content.verdicts:
            print(f"{verdict.claim}: {ANSWERS[verdict.holds]} ({verdict.ours})")
        print(f"report: {page}")
    if ran.signal is not None:
        return console.interrupted(ran.signal)
    if ran.failures:
        names = ", ".join(failure.cell for failure in ran.failures)  # reasons were printed when they failed
        raise CheckFailed(f"{plural(len(ran.failures), 'cell')} failed: {names}")
    return 0


@dataclass(frozen=True)
class Estimate:
    memory: str
    parameters: int
    seconds: float
    """Of one run, without evaluations."""
    runs_left: int


def _dry_run(recipes: dict[str, Recipe], seeds: Sequence[int], folder: Path, as_json: bool) -> int:
    estimates = [_estimate(memory, recipe, seeds, folder) for memory, recipe in recipes.items()]
    total = sum(each.seconds * each.runs_left for each in estimates)
    pairs = [(memory, seed) for seed in seeds for memory in recipes]
    cells = [{"cell": f"{pair[0]}-seed{pair[1]}", "folder": str(_run_folder(folder, *pair))} for pair in pairs]
    if as_json:
        console.print_json({"cells": cells, "memories": [vars(each) for each in estimates], "seconds": total})
        return 0
    rows = [
        (each.memory, f"{each.parameters:,}", format_time(each.seconds), f"{each.runs_left} of {len(seeds)}")
        for each in estimates
    ]
    console.table(rows, ("memory", "parameters", "time of a run", "runs left"))
    steps = next(iter(recipes.values())).train.steps
    print(f"{plural(len(cells), 'run')} of {plural(steps, 'step')} in {folder}: {', '.join(c['cell'] for c in cells)}")
    print(
        f"about {format_time(total)} in all, from the fastest of some updates of each memory: evaluations come on top, "
        "and other work on this machine during this estimate makes it too long; nothing was trained"
    )
    return 0


def _run_folder(folder: Path, memory: str, seed: int) -> Path:
    return cell_folder(folder, f"{memory}-seed{seed}") / RUN


def _estimate(memory: str, recipe: Recipe, seeds: Sequence[int], folder: Path) -> Estimate:
    parameters = num_parameters(recipe.model)
    plain = replace(recipe.train, compile=False, cuda_graph=False)
    seconds = fastest(timed_updates(recipe.model, plain))
    done = [(_run_folder(folder, memory, seed).parent / RESULT).is_file() for seed in seeds]
    return Estimate(memory, parameters, seconds * recipe.train.steps, done.count(False))


def fastest(seconds_of_updates: Iterable[float]) -> float:
    """The fastest of the first updates: an update that waits for a busy core can take many times as long."""
    timed: list[float] = []
    for seconds in seconds_of_updates:
        timed.append(seconds)
        enough = len(timed) >= MOST_UPDATES or sum(timed) >= MOST_SECONDS
        if enough and len(timed) >= LEAST_UPDATES:
            break
    return min(timed)
