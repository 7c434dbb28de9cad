"""Test a claim of the papers: run its measurements, judge them, write a page.

`mnemo reproduce --list` shows every experiment and its claim. Budgets: smoke takes seconds and checks that everything
runs; small tests the claim at a size that one GPU trains in minutes; paper has the published hyperparameters.
After an interruption the same command continues; finished cells are not run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from mnemo.errors import MnemoError
from mnemo.papers import Budget, check_name

OUT, SITE = Path("runs/reproduce"), Path("runs/papers")


@dataclass(frozen=True, kw_only=True)
class Args:
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments, such as rmt-copy."""
    list: bool = False
    """Show every experiment and the claim that it tests."""
    budget: Budget = "small"
    """smoke: seconds; small: minutes on one GPU; paper: the published hyperparameters."""
    out: Path = OUT
    """Folder for results."""
    site: Path = SITE
    """Folder for pages, which are made from the results."""
    jobs: int = 1
    """Cells that run at once, each in its own process; small models can share a GPU."""
    device: str = "auto"
    """cpu or cuda; auto uses a GPU if there is one."""
    cell: str | None = None
    """Run this cell only."""
    report: bool = False
    """Run nothing: judge the stored results again and write their pages; without names, of all experiments."""
    overview: Path | None = None
    """Run nothing: write all results under --out to this Markdown file."""
    json: bool = False
    """Print verdicts (or the list) as JSON."""


def run(args: Args) -> int:
    if args.jobs < 1:
        raise MnemoError(f"--jobs {args.jobs} must be positive")
    for name in args.names:
        check_name(name)
    from mnemo.cli.reproduction import reproduce

    return reproduce(args)
