"""Put a trained model into one folder: weights as they were evaluated (.safetensors), recipe and tokenizer.

    mnemo export RUN                     into RUN/export
    mnemo export RUN --output DIR        elsewhere

The folder stands for the run wherever one is read: mnemo eval DIR, mnemo generate DIR, mnemo train --from DIR. It does
not matter how many processes trained the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.cli.console import print_json
from mnemo.storage.run_folder import RUNS, Which, export_run, find_run


@dataclass(frozen=True, kw_only=True)
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """Folder of a run, or its name."""
    output: Path | None = None
    """Folder to make; RUN/export when left out."""
    which: Which = "best"
    """The checkpoint with the lowest validation loss, or the newest."""
    runs: Path = RUNS
    """Folder of runs."""
    json: bool = False
    """Print the result as JSON."""


def run(args: Args) -> int:
    folder = find_run(args.run, args.runs)
    target = args.output or folder / "export"
    found = export_run(folder, target, args.which)
    if args.json:
        print_json({"folder": str(target), "step": found.step})
    else:
        print(f"exported: {target}, the weights after step {found.step:,}")
        print(f"next: mnemo eval {target}")
    return 0
