"""Run experiments, judge their results and write their pages, as the flags of `mnemo reproduce` ask."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnemo.cli import console
from mnemo.cli.reproduce import Args
from mnemo.cli.watching import watching
from mnemo.errors import CheckFailed, MnemoError
from mnemo.papers import Experiment, every_experiment, find_experiment
from mnemo.papers.jobs import Stopped
from mnemo.papers.needs import require_needs
from mnemo.papers.pages import complete, has_results, judged, results_markdown, write_index, write_page
from mnemo.papers.pool import run_together
from mnemo.papers.runner import Ran, run_cell, run_here
from mnemo.papers.store import Found, grid_folder, load_grid, save_grid
from mnemo.report.files import write_text
from mnemo.storage.weights import pick_device

EXIT_INTERRUPTED = 130


def reproduce(args: Args) -> int:
    if args.list:
        return _list(args.json)
    if args.overview is not None:
        return _overview(args.overview, args.out)
    asked = _named(args)
    if args.cell is not None:
        return _one_cell(asked, args, args.cell)
    if not args.report:
        device = pick_device(args.device)
        for each in asked:
            require_needs(each, args.budget, device)
        if device.type != "cuda" and args.budget != "smoke":
            _print(f"budget {args.budget} is meant for a GPU; on this device it may take very long (Ctrl-C is safe)")
    return _finish(list(zip(asked, _run(asked, args), strict=True)), args)


def _named(args: Args) -> list[Experiment]:
    if args.names:
        return [find_experiment(name) for name in dict.fromkeys(args.names)]
    if not args.report:
        raise MnemoError("name an experiment: mnemo reproduce --list shows all")
    stored = [each for each in every_experiment().values() if has_results(args.out, each, args.budget)]
    if not stored:
        raise _no_results(args.out)
    return stored


def _no_results(out: Path) -> MnemoError:
    return MnemoError(f"there are no results in {out}: mnemo reproduce NAME --out {out} makes some")


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
        raise _no_results(out)
    write_text(path, text)
    print(path)
    return 0


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(asked: Sequence[Experiment], args: Args) -> list[Ran]:
    budget, grids = args.budget, [grid_folder(args.out, each.name, args.budget) for each in asked]
    if args.report:
        return [Ran(load_grid(grid, each, budget), ()) for each, grid in zip(asked, grids, strict=True)]
    if args.jobs > 1:
        return run_together(asked, budget, args.out, jobs=args.jobs, device=args.device, print_line=_print)
    done = []
    with watching() as watcher:
        for each, grid in zip(asked, grids, strict=True):
            if done and done[-1].interrupted:
                done.append(Ran(load_grid(grid, each, budget), (), interrupted=True))
            else:
                done.append(run_here(each, budget, grid, device=args.device, monitor=watcher, print_line=_print))
    return done


def _one_cell(asked: Sequence[Experiment], args: Args, name: str) -> int:
    if len(asked) > 1:
        raise MnemoError("--cell needs exactly one experiment")
    (experiment,) = asked
    cell = next((cell for cell in experiment.cells(args.budget) if cell.name == name), None)
    if cell is None:
        raise MnemoError(f"{experiment.name} has no cell '{name}' at budget {args.budget}")
    grid = grid_folder(args.out, experiment.name, args.budget)
    try:
        with watching() as watcher:
            run_cell(cell, experiment.cells(args.budget), grid, pick_device(args.device), watcher)
    except Stopped:
        return EXIT_INTERRUPTED
    return 0


def _finish(ran: Sequence[tuple[Experiment, Ran]], args: Args) -> int:
    answers = []
    for experiment, done in ran:
        for problem in complete(experiment, done.found).problems:
            print(f"mnemo: left out: {problem}", file=sys.stderr)
        if done.found.results.cells and not args.report:
            save_grid(grid_folder(args.out, experiment.name, args.budget), experiment, done.found.results)
        page = write_page(experiment, args.site, args.budget, done.found)
        answers.append(_show(experiment, args, done.found, page))
    write_index(args.out, args.site)
    if args.json:
        console.print_json(answers[0] if len(answers) == 1 else answers)
    if any(done.interrupted for _, done in ran):
        print("mnemo: interrupted; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    failures = [failure for _, done in ran for failure in done.failures]
    if failures:
        raise CheckFailed(f"{len(failures)} of the cells failed: {'; '.join(failures)}")
    return 0


def _show(experiment: Experiment, args: Args, found: Found, page: Path) -> dict[str, Any]:
    """Print verdicts unless --json is given; return them for one JSON object."""
    verdicts = judged(experiment, found)
    if not args.json:
        print(f"{experiment.name} ({args.budget}): {experiment.claim}")
        for answer, claim, paper, ours in verdicts.rows:
            print(f"{answer}: {claim}\n    paper: {paper}\n    ours: {ours}")
        print(page)
    return {"experiment": experiment.name, "budget": args.budget, "page": str(page), **verdicts.json()}
