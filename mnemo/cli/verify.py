"""Verify that files are what Mnemo wrote: compare the content of every file with its checksum.

    mnemo verify RUN             recipe, tokenizer, all checkpoints, metrics and results
    mnemo verify CORPUS          the ids of all splits
    mnemo verify FILE.memory     a memory file; or any .safetensors or .json file that Mnemo wrote

Several can be given. Exit code 1: something is wrong, and each problem is listed. Other commands verify what they load
by themselves; this one checks everything, for example after a copy to another disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mnemo.cli import console
from mnemo.errors import MnemoError
from mnemo.recipes.option_types import Several
from mnemo.storage.run_header import RUNS

if TYPE_CHECKING:
    from mnemo.storage.verify import Verified


@dataclass(frozen=True, kw_only=True)
class Args:
    targets: Annotated[Several[str], tyro.conf.Positional]
    """Runs, exports and corpora (folder or name), and memory files."""
    runs: Path = RUNS
    """Folder of runs."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    if not args.targets:
        raise MnemoError("name at least one run, corpus or memory file: mnemo verify runs/*")
    from mnemo.storage.verify_target import find_target

    paths = [find_target(target, args.runs) for target in args.targets]
    from mnemo.storage.verify import verify

    found = [verify(path, runs=args.runs, show=console.progress) for path in paths]
    if args.json:
        console.print_json([each.to_json() for each in found])
    else:
        for each in found:
            _print(each)
    return int(any(each.problems for each in found))


def _print(found: Verified) -> None:
    for problem in found.problems:
        print(f"wrong: {problem}")
    unchecked = f", {len(found.unchecked)} without checksums (of an earlier version)" if found.unchecked else ""
    outcome = f"{len(found.problems)} problem(s)" if found.problems else "whole"
    print(f"{found.kind} {found.path}: {outcome}; {len(found.verified)} file(s) match their checksums{unchecked}")
