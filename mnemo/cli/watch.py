"""Show the curves of a run while another process trains it: losses, learning rate, speed, time left.

    mnemo watch                   the run that was written to last
    mnemo watch RUN               another run
    mnemo watch RUN --once        one picture, without waiting

On a terminal the picture is drawn again every few seconds; elsewhere every new measurement is a line. It ends when the
training ends; Ctrl-C ends it earlier, and never the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.errors import MnemoError, require_positive
from mnemo.storage.run_header import RUNS, find_run, last_written, named_runs, run_folders


@dataclass(frozen=True, kw_only=True)
class Args:
    run: Annotated[str | None, tyro.conf.Positional] = None
    """A run's folder, or its name under runs/; if unset, the run that was written to last."""
    once: bool = False
    """Show one picture and end."""
    every: float = 2.0
    """Seconds between two looks at the run."""
    json: bool = False
    """Print the present numbers as JSON and end."""


def run(args: Args) -> int:
    require_positive("--every", args.every)
    folder = _last_written() if args.run is None else find_run(args.run)
    from mnemo.cli.watch_run import watch

    watch(args, folder)
    return 0


def _last_written() -> Path:
    folders = run_folders()
    if not folders:
        deeper = next(iter(named_runs()), None)
        where, example = (RUNS, "") if deeper is None else (f"{RUNS} itself", f", such as {deeper}")
        raise MnemoError(f"there is no run in {where}: name the folder of one{example}")
    return max(folders, key=last_written)
