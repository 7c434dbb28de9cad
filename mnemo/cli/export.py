"""Write a trained model to one folder: weights as they were evaluated (.safetensors), recipe and tokenizer.

    mnemo export RUN                     to RUN/export
    mnemo export RUN --out DIR           to DIR

The folder can be used in place of the run: mnemo eval DIR, mnemo generate DIR, mnemo train --from DIR. Runs of any
number of processes can be exported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.cli.console import print_json
from mnemo.cli.run_arguments import run_or_last
from mnemo.errors import MnemoError
from mnemo.storage.run_header import RUNS, Which, load_header
from mnemo.storage.shipped import is_shipped


@dataclass(frozen=True, kw_only=True)
class Args:
    run: Annotated[str | None, tyro.conf.Positional] = None
    """A run's folder, or its name; if unset, the run that was trained last."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["--output"])] = None
    """Folder to create; if unset, RUN/export."""
    which: Which = "best"
    """The checkpoint with the lowest validation loss, or the last one."""
    half: bool = False
    """Store the weights in bfloat16: half the space, about three digits. They are loaded as float32."""
    runs: Path = RUNS
    """Folder of runs."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    folder = run_or_last(args.run, args.runs)
    if args.out is None and is_shipped(folder):
        raise MnemoError(f"{folder.name} comes with mnemo: name a folder for the export with --out")
    if args.half and load_header(folder).recipe.train.precision == "fp64":
        raise MnemoError(f"{folder} has weights of float64, which --half would store with three digits")
    target = args.out or folder / "export"
    from mnemo.storage.run_folder import export_run

    found = export_run(folder, target, args.which, args.half)
    if args.json:
        print_json({"folder": str(target), "step": found.step})
    else:
        print(f"exported: {target}, the weights after step {found.step:,}")
        print(f"next: mnemo eval {target}")
    return 0
