"""Test a claim of the papers: run its measurements, judge them, write a page.

`mnemo reproduce --list` shows every experiment with what it tests. Budgets: smoke takes seconds and shows that it runs;
small asks the same question at a size that one GPU answers in minutes; paper has the published hyperparameters.
Interrupt it at any time: the same command goes on where it stopped, and what is done is not done again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from mnemo.checkpoint import pick_device
from mnemo.cli import console
from mnemo.cli.watching import watching
from mnemo.errors import CheckFailed, MnemoError
from mnemo.experiments import Budget, Experiment, every_experiment, find_experiment
from mnemo.experiments.jobs import Stopped
from mnemo.experiments.needs import require_needs
from mnemo.experiments.pages import judged, results_markdown, write_pages
from mnemo.experiments.runner import Ran, run_cell, run_here, run_together
from mnemo.experiments.store import Found, grid_folder, read_grid, save_grid
from mnemo.report.files import write_text

OUT = Path("runs/reproduce")
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Args:
    name: tyro.conf.Positional[str | None] = None
    """An experiment, such as rmt-copy."""
    list: bool = False
    """Show every experiment and the claim that it tests."""
    budget: Budget = "small"
    """smoke: seconds; small: minutes on one GPU; paper: the published hyperparameters."""
    out: Path = OUT
    """Folder for results and pages."""
    jobs: int = 1
    """Cells that run at once, each in a process of its own: small models share a GPU well."""
    device: str = "auto"
    """cpu or cuda; auto takes a GPU where there is one."""
    cell: str | None = None
    """Run this cell only."""
    report: bool = False
    """Run nothing: judge what is there and write the pages again."""
    overview: Path | None = None
    """Run nothing: write all results under --out to this Markdown file."""
    json: bool = False
    """Print verdicts (or the list) as JSON."""


def run(args: Args) -> int:
    if args.list:
        return _list(args.json)
    if args.overview is not None:
        return _overview(args.overview, args.out)
    if args.name is None:
        raise MnemoError("name an experiment: mnemo reproduce --list shows all")
    if args.jobs < 1:
        raise MnemoError(f"--jobs {args.jobs} must be positive")
    experiment = find_experiment(args.name)
    grid = grid_folder(args.out, experiment.name, args.budget)
    if args.cell is not None:
        return _one(experiment, args, grid)
    if args.report:
        return _finish(experiment, args, grid, Ran(read_grid(grid, experiment, args.budget), ()))
    require_needs(experiment, args.budget, pick_device(args.device))
    ran = _run(experiment, args, grid)
    return _finish(experiment, args, grid, ran)


def _list(as_json: bool) -> int:
    known = every_experiment()
    if as_json:
        fields = ("name", "title", "paper", "covers", "claim")
        console.print_json([{name: getattr(each, name) for name in fields} for each in known.values()])
        return 0
    width = max(len(name) for name in known)
    for each in known.values():
        print(f"{each.name:<{width}}  {', '.join(each.covers)}: {each.claim}")
    return 0


def _overview(path: Path, out: Path) -> int:
    text = results_markdown(out, path.resolve().parent)
    if text is None:
        raise MnemoError(f"there are no results in {out}: mnemo reproduce NAME --out {out} makes some")
    write_text(path, text)
    print(path)
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(experiment: Experiment, args: Args, grid: Path) -> Ran:
    if args.jobs > 1:
        return run_together(experiment, args.budget, grid, jobs=args.jobs, device=args.device, tell=_tell, out=args.out)
    with watching() as watcher:
        return run_here(experiment, args.budget, grid, device=args.device, monitor=watcher, tell=_tell)


def _one(experiment: Experiment, args: Args, grid: Path) -> int:
    cells = {cell.name: cell for cell in experiment.cells(args.budget)}
    if args.cell not in cells:
        raise MnemoError(f"{experiment.name} has no cell '{args.cell}' at budget {args.budget}")
    try:
        with watching() as watcher:
            run_cell(experiment, cells[args.cell], grid, pick_device(args.device), watcher)
    except Stopped:
        return EXIT_INTERRUPTED
    return 0


def _finish(experiment: Experiment, args: Args, grid: Path, ran: Ran) -> int:
    found = ran.found
    for problem in found.problems:
        print(f"mnemo: left out: {problem}", file=sys.stderr)
    if found.results.cells:
        save_grid(grid, experiment, found.results)
    page = write_pages(experiment, args.out, args.budget, found)
    _show(experiment, args, found, page)
    if ran.interrupted:
        print("mnemo: interrupted; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    if ran.failures:
        raise CheckFailed(f"{len(ran.failures)} of the cells failed: {'; '.join(ran.failures)}")
    return 0


def _show(experiment: Experiment, args: Args, found: Found, page: Path) -> None:
    verdicts = judged(experiment, found.results)
    if args.json:
        console.print_json({"experiment": experiment.name, "budget": args.budget, "page": str(page), **verdicts.json()})
        return
    print(f"{experiment.name} ({args.budget}): {experiment.claim}")
    for answer, claim, paper, ours in verdicts.rows:
        print(f"{answer:>5}: {claim}\n       paper: {paper}\n       ours: {ours}")
    print(page)
