"""Test a claim of the papers: run its measurements, judge them, write a page.

`mnemo reproduce --budget laptop` shows the main claim of every paper on two CPU cores, in at most 15 minutes.
`mnemo reproduce --list` shows every experiment and its claim. The other budgets: small, a size that one GPU trains in
minutes; gpu, the main claims on enwik8 and on RMT's tasks; paper, the published hyperparameters; self-test, two steps
of everything, which shows that the code runs and says nothing about the claim. After an interruption the same command
continues; finished cells are not run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import tyro

from mnemo.errors import MnemoError, require_positive
from mnemo.papers import BUDGETS, Budget, check_name
from mnemo.recipes.option_types import Several

OUT, SITE = Path("runs/reproduce"), Path("runs/papers")
OLD_NAMES: dict[str, Budget] = {"smoke": "self-test"}
"""Former names of budgets, which scripts may still use."""
MAIN_CLAIMS: tuple[Budget, ...] = ("laptop", "gpu")
"""Budgets with experiments of their own, which run without names."""


@dataclass(frozen=True, kw_only=True)
class Args:
    names: Annotated[Several[str], tyro.conf.Positional] = ()
    """Experiments, such as rmt-copy."""
    list: bool = False
    """Show every experiment, or those that are named or have --budget: its budgets, how much of them has results under
    --out, and the claim that it tests."""
    budget: Annotated[str | None, tyro.conf.arg(metavar="{laptop,small,gpu,paper,self-test}")] = None
    """laptop: at most 15 minutes on two CPU cores, for the experiments laptop-* (all of them if none is named); gpu:
    the main claims on enwik8 and on RMT's tasks, for the experiments gpu-*, each sized for half an hour of one GPU;
    small, the default of the others: minutes on one GPU; paper: the published hyperparameters; self-test: two steps, no
    verdicts."""
    out: Path = OUT
    """Folder for results."""
    site: Path = SITE
    """Folder for pages, which are made from the results."""
    jobs: int | None = None
    """Cells that run at once, each in its own process; small models can share a GPU. By default one, and at budget
    laptop one for every CPU core."""
    device: str = "auto"
    """cpu or cuda; auto uses a GPU if there is one."""
    cell: str | None = None
    """Run this cell only, unless it is done. --jobs then says how many cells you run at the same time, which is stored
    with its seconds."""
    report: bool = False
    """Run nothing: judge the stored results again and write their pages; without names, of all experiments, and without
    --budget at all budgets."""
    overview: Path | None = None
    """Run nothing: write tables of the main numbers and of all results under --out to this Markdown file."""
    json: bool = False
    """Print verdicts (or the list) as JSON."""


def run(args: Args) -> int:
    require_positive("--jobs", args.jobs)
    if args.report and args.cell is not None:
        raise MnemoError("--report runs nothing, so it cannot run --cell: leave one of them out")
    if args.overview is not None and args.names:
        raise MnemoError("--overview is made of all results: leave the names out")
    for name in args.names:
        check_name(name)
    budget = None if args.budget is None else _budget(args.budget)
    if not (args.names or args.list or args.report or args.overview or budget in MAIN_CLAIMS):
        needs = "name an experiment" if budget is None else f"--budget {budget} needs the names of experiments"
        raise MnemoError(
            f"{needs}: mnemo reproduce --list shows all; mnemo reproduce --budget laptop shows the main claim of every "
            "paper"
        )
    from mnemo.cli.reproduction import reproduce

    return reproduce(args, budget)


def _budget(name: str) -> Budget:
    known = OLD_NAMES.get(name, name)
    if known not in BUDGETS:
        raise MnemoError(f"--budget: '{name}' is not one of {', '.join(BUDGETS)}")
    return cast(Budget, known)
