"""Run experiments, judge their results and write their pages, as the flags of `mnemo reproduce` ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from mnemo.cli import console
from mnemo.cli.reproduce import MAIN_CLAIMS, Args
from mnemo.cli.run_arguments import made_folder
from mnemo.cli.watching import watching
from mnemo.cost.training_cost import cpu_time_in_words
from mnemo.errors import CheckFailed, MnemoError, plural, unknown
from mnemo.papers import Budget, Cell, Experiment, every_experiment, find_experiment
from mnemo.papers.gpu_sharing import advice
from mnemo.papers.jobs import Stopped
from mnemo.papers.needs import ON_A_GPU, differences, require_needs, training_flops
from mnemo.papers.overview import MEASUREMENTS, overview_markdown, write_index
from mnemo.papers.pages import build_page, has_results, verdicts_json, write_page
from mnemo.papers.pool import CHECKED, run_together
from mnemo.papers.runner import Ran, continue_grid, run_cell, run_here
from mnemo.papers.store import RESULT, RESULTS, cell_folder, grid_folder, load_grid, missing, save_grid
from mnemo.report.experiment_page import ExperimentPage
from mnemo.report.files import write_text
from mnemo.report.findings import ANSWERS
from mnemo.storage.weights import pick_device
from mnemo.training.parent import end_with_parent

MOST_CORES = 4
"""Cells of the laptop budget that run at once by default: more processes take too much memory."""


class Asked(NamedTuple):
    experiment: Experiment
    budget: Budget


def reproduce(args: Args, budget: Budget | None) -> int:
    """`budget`: None for the default of each experiment."""
    if args.list:
        return _list(args, budget)
    if args.overview is not None:
        return _overview(args.overview, args.out)
    asked = _asked(args, budget)
    if args.cell is not None:
        return _one_cell(asked, args, args.cell)
    if not args.report:
        _check_machine(asked, args)
        made_folder(args.out)
    made_folder(args.site, "--site")
    return _finish(list(zip(asked, _run(asked, args), strict=True)), args)


def _asked(args: Args, budget: Budget | None) -> list[Asked]:
    """The experiments to run or to report, each with a budget that it has."""
    if args.report and not args.names:
        return _stored(args.out, budget)
    named = [find_experiment(name) for name in dict.fromkeys(args.names)] or _with_budget(budget)
    asked = [Asked(each, budget or each.budgets[1]) for each in named]
    for each in asked:
        _require_budget(each)
        if args.report and not has_results(args.out, *each):
            raise _no_results(args.out, each)
    if not args.report and len({each.budget for each in asked}) > 1:
        raise MnemoError("these experiments have different budgets: run them one after the other, or choose a --budget")
    return asked


def _with_budget(budget: Budget | None) -> list[Experiment]:
    return [each for each in every_experiment().values() if budget is None or budget in each.budgets]


def _require_budget(asked: Asked) -> None:
    experiment, budget = asked
    if budget in experiment.budgets:
        return
    others = ", ".join(each.name for each in _with_budget(budget))
    runs = f"; mnemo reproduce --budget {budget} runs {others}" if budget in MAIN_CLAIMS else ""
    raise MnemoError(f"{experiment.name} has no budget {budget}, only {', '.join(experiment.budgets)}{runs}")


def _stored(out: Path, budget: Budget | None = None) -> list[Asked]:
    """What has results, at one budget or at all."""
    asked = [Asked(each, its) for each in _with_budget(budget) for its in each.budgets if budget in (None, its)]
    if not (found := [each for each in asked if has_results(out, *each)]):
        raise _nothing_in(out, budget)
    return found


def _nothing_in(out: Path, budget: Budget | None = None) -> MnemoError:
    at, flag = (f" at budget {budget}", f" --budget {budget}") if budget else ("", "")
    return MnemoError(f"there are no results{at} in {out}: mnemo reproduce NAME{flag} --out {out} makes some")


def _check_machine(asked: Sequence[Asked], args: Args) -> None:
    """Complete experiments, which are only judged again, need no corpus and no GPU."""
    device = pick_device(_device(asked, args))
    to_run = [each for each in asked if _is_incomplete(each, args.out)]
    for each in to_run:
        require_needs(each.experiment, each.budget, device)
    for difference in dict.fromkeys(difference for each in to_run for difference in differences(*each)):
        _print(f"not the published corpus: {difference}")
    budget = asked[0].budget
    if to_run and device.type != "cuda" and budget in ON_A_GPU:
        flops = training_flops(cell for each in to_run for cell in _unmade(each, args.out))
        time = f": to train, {cpu_time_in_words(flops)}" if flops else "; on this device it may take very long"
        _print(f"budget {budget} is meant for a GPU{time} (Ctrl-C is safe)")
    if to_run and _jobs(asked, args) > 1 and (line := advice(device)):
        _print(line)


def _is_incomplete(asked: Asked, out: Path) -> bool:
    count = _counted(asked, out)
    return count.done < count.cells


def _device(asked: Sequence[Asked], args: Args) -> str:
    """Models of the laptop budget are too small for a GPU."""
    return "cpu" if args.device == "auto" and asked[0].budget == "laptop" else args.device


def _jobs(asked: Sequence[Asked], args: Args) -> int:
    if args.jobs is not None:
        return args.jobs
    return min(MOST_CORES, os.cpu_count() or 1) if asked[0].budget == "laptop" else 1


def _no_results(out: Path, asked: Asked) -> MnemoError:
    experiment, budget = asked
    others = [each for each in experiment.budgets if has_results(out, experiment, each)]
    hint = f"there are some at --budget {' and '.join(others)}" if others else ""
    begun = _counted(asked, out).begun
    makes = f"mnemo reproduce {experiment.name} --budget {budget} --out {out} " + (
        f"continues the {plural(begun, 'cell')} that it has begun" if begun else "makes them"
    )
    return MnemoError(f"there are no results of {experiment.name} at budget {budget} in {out}: {hint or makes}")


class Counted(NamedTuple):
    """How many cells a grid has, how many of them have a result, and how many others are begun."""

    cells: int
    done: int
    begun: int

    def __str__(self) -> str:
        begun = f", {self.begun} begun" if self.begun else ""
        return "done" if self.done == self.cells else f"{self.done} of {self.cells} cells{begun}"


def _list(args: Args, budget: Budget | None) -> int:
    listed = [find_experiment(name) for name in args.names] or _with_budget(budget)
    if args.json:
        console.print_json([_described(each, args.out) for each in listed])
        return 0
    width = max((len(each.name) for each in listed), default=0)
    for each in listed:
        budgets = ", ".join(_with_results(Asked(each, its), args.out) for its in each.budgets if its != "self-test")
        print(f"{each.name:<{width}}  [{budgets}] {', '.join(each.covers)}: {each.claim}")
    return 0


def _described(experiment: Experiment, out: Path) -> dict[str, Any]:
    fields = ("name", "title", "paper", "covers", "claim")
    counts = {budget: _counted(Asked(experiment, budget), out)._asdict() for budget in experiment.budgets}
    return {**{name: getattr(experiment, name) for name in fields}, "budgets": counts}


def _with_results(asked: Asked, out: Path) -> str:
    """The budget, and how much of it is done."""
    count = _counted(asked, out)
    return f"{asked.budget}: {count}" if count.done or count.begun else asked.budget


def _counted(asked: Asked, out: Path) -> Counted:
    experiment, budget = asked
    cells, unmade = experiment.cells(budget), _unmade(asked, out)
    grid = grid_folder(out, experiment.name, budget)
    begun = sum(cell_folder(grid, cell.name).is_dir() for cell in unmade)
    return Counted(len(cells), len(cells) - len(unmade), begun)


def _unmade(asked: Asked, out: Path) -> list[Cell]:
    """The cells without a result."""
    experiment, budget = asked
    stored = load_grid(grid_folder(out, experiment.name, budget), experiment, budget)
    return missing(experiment.cells(budget), stored.results)


def _overview(path: Path, out: Path) -> int:
    if path.is_dir():
        raise MnemoError(f"--overview {path} is a folder: name a file, such as {path / 'RESULTS.md'}")
    beside = path.resolve().parent
    text = overview_markdown(out, beside)
    if text is None:
        raise _nothing_in(out)
    write_text(path, text)
    if not (beside / MEASUREMENTS).is_dir():
        print(
            f"note: there is no folder {beside / MEASUREMENTS}: main numbers that no experiment has measured are left "
            "out, and links to pages of the documentation lead nowhere",
            file=sys.stderr,
        )
    print(path)
    return 0


def _print(line: str) -> None:
    """Also if the terminal is closed: workers then save, and pages are written."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _run(asked: Sequence[Asked], args: Args) -> list[Ran]:
    grids = [grid_folder(args.out, each.experiment.name, each.budget) for each in asked]
    if args.report:
        return [Ran(load_grid(grid, *each), ()) for each, grid in zip(asked, grids, strict=True)]
    budget, jobs, device = asked[0].budget, _jobs(asked, args), _device(asked, args)
    experiments = [each.experiment for each in asked]
    if jobs > 1:
        return run_together(experiments, budget, args.out, jobs=jobs, device=device, print_line=_print)
    done = []
    with watching() as watcher:
        for each, grid in zip(experiments, grids, strict=True):
            if done and done[-1].interrupted:
                done.append(Ran(load_grid(grid, each, budget), (), done[-1].signal))
            else:
                done.append(run_here(each, budget, grid, device=device, monitor=watcher, print_line=_print))
    return done


def _one_cell(asked: Sequence[Asked], args: Args, name: str) -> int:
    if len(asked) > 1:
        raise MnemoError("--cell needs exactly one experiment")
    end_with_parent()
    ((experiment, budget),) = asked
    cells = experiment.cells(budget)
    cell = next((cell for cell in cells if cell.name == name), None)
    if cell is None:
        raise unknown(f"cell of {experiment.name}", name, [each.name for each in cells])
    grid = grid_folder(args.out, experiment.name, budget)
    if cell not in missing(cells, load_grid(grid, experiment, budget).results):
        _print(f"{name} is done already; another --out runs it again")
        return _show_cell(asked[0], args, name)
    unmade = {each.name for each in continue_grid(experiment, budget, grid)}
    if before := [other for other in cell.after if other in unmade]:
        raise MnemoError(f"{name} needs the results of {', '.join(before)}: run --cell {before[0]} first")
    if CHECKED not in os.environ:
        _check_machine([Asked(replace(experiment, cells=lambda budget: [cell]), budget)], args)
    made_folder(args.out)
    try:
        with watching() as watcher:
            run_cell(cell, cells, grid, pick_device(_device(asked, args)), watcher, at_once=args.jobs or 1)
    except Stopped as stopped:
        return console.interrupted(stopped.signal)
    return _show_cell(asked[0], args, name)


def _show_cell(asked: Asked, args: Args, name: str) -> int:
    """Print where the result is, if JSON is wanted: in the cell's folder, or in a copied file of all results."""
    experiment, budget = asked
    if args.json:
        grid = grid_folder(args.out, experiment.name, budget)
        own = cell_folder(grid, name) / RESULT
        result = own if own.exists() else grid / RESULTS
        console.print_json({"experiment": experiment.name, "budget": budget, "cell": name, "result": str(result)})
    return 0


def _finish(ran: Sequence[tuple[Asked, Ran]], args: Args) -> int:
    """Write all pages before anything is printed, which can fail."""
    stopped_by = next((done.signal for _, done in ran if done.interrupted), None)
    pages = [_write(asked, done, args) for asked, done in ran]
    index = write_index(args.out, args.site)
    console.drop_lost_output(pipes=stopped_by is not None)
    answers = [_show(page, path, as_json=args.json) for page, path in pages]
    if args.json:
        console.print_json(answers[0] if len(answers) == 1 else answers)
    else:
        print(f"index of all pages: {index}")
    if stopped_by is not None:
        return console.interrupted(stopped_by)
    failures = [f"{asked.experiment.name} {failure.place}" for asked, done in ran for failure in done.failures]
    if failures:
        raise CheckFailed(f"{len(failures)} of the cells failed: {', '.join(failures)}")
    return 0


def _write(asked: Asked, done: Ran, args: Args) -> tuple[ExperimentPage, Path]:
    experiment, budget = asked
    page = build_page(experiment, done.found)
    if done.found.results.cells and not args.report:
        save_grid(grid_folder(args.out, experiment.name, budget), experiment, done.found.results)
    return page, write_page(page, args.site, budget, args.out)


def _show(page: ExperimentPage, path: Path, *, as_json: bool) -> dict[str, Any]:
    """Print verdicts unless JSON is wanted; return them for one JSON object."""
    for problem in page.problems:
        print(f"mnemo: left out: {problem}", file=sys.stderr)
    if not as_json:
        print(f"{page.name} ({page.budget}): {page.claim}")
        if page.about_verdicts:
            print(page.about_verdicts)
        for verdict in page.verdicts:
            print(f"{ANSWERS[verdict.holds]}: {verdict.claim}\n    paper: {verdict.paper}\n    ours: {verdict.ours}")
        print(path)
    return {"experiment": page.name, "budget": page.budget, "page": str(path), **verdicts_json(page.verdicts)}
