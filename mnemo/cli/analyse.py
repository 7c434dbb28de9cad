"""Show where memory helps on a given text: the loss of every token with and without memory, the attention by distance,
and the alpha of look-ahead memories. Writes an HTML page, its figures as SVG and its numbers as CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.cli.run_arguments import RunArgs, require_file
from mnemo.errors import MnemoError
from mnemo.storage.run_header import find_run

STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class Args(RunArgs):
    text: Annotated[str, tyro.conf.Positional]
    """A text file; xz, gz and bz2 files are decompressed. - reads from a pipe."""
    out: Path | None = None
    """Folder for report.html and its files; if unset, analyses/TEXT in the run's folder."""
    limit: int = 20_000
    """Use only the first N tokens of the text; 0: all."""
    segment: int | None = None
    """Segment length; if unset, as in training."""
    memory_length: int | None = None
    """Memory length of the long-range layers; if unset, as in training."""


def run(args: Args) -> int:
    _check(args)
    from mnemo.cli.analyse_text import analyse

    return analyse(args)


def _check(args: Args) -> None:
    for name, value, least in (
        ("limit", args.limit, 0),
        ("segment", args.segment, 1),
        ("memory length", args.memory_length, 0),
    ):
        if value is not None and value < least:
            raise MnemoError(f"{name} {value} is {'negative' if least == 0 else 'not positive'}")
    if args.out is not None and args.out.exists() and not args.out.is_dir():
        raise MnemoError(f"{args.out} is not a folder")
    find_run(args.run)
    if args.text != STDIN:
        require_file(Path(args.text))
