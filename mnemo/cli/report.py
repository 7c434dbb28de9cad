"""One HTML page with the curves, numbers and samples of runs, side by side; it works offline."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mnemo.errors import MnemoError
from mnemo.recipes.option_types import Several
from mnemo.report.run_files import is_run, why_no_run
from mnemo.storage.run_header import RUNS, no_run
from mnemo.storage.shipped import is_shipped, shipped_model

PAGES = (".html", ".htm")


@dataclass(frozen=True, kw_only=True)
class Args:
    runs: Annotated[Several[str], tyro.conf.Positional]
    """Run folders, names under runs/, or folders of runs such as runs/demo."""
    out: Path | None = None
    """The page to write; by default runs/NAME/report.html for one run, runs/report.html for several or a folder of
    runs."""
    title: str | None = None
    """The page's heading."""


def run(args: Args) -> int:
    if not args.runs:
        raise MnemoError("name at least one run: mnemo report RUN...")
    folders = [locate(name) for name in args.runs]
    # A folder of runs may have a page of its own, such as that of the demo.
    alone = len(folders) == 1 and is_run(folders[0]) and not is_shipped(folders[0])
    out = args.out or (folders[0] if alone else RUNS) / "report.html"
    paths = [path for folder in folders for path in inside(folder)]
    # Other files and folders are only left out: `runs/*` matches the page of the last report too.
    if all(map(why_no_run, paths)):
        raise MnemoError(why_no_run(paths[0].resolve()) or "")
    if out.exists() and (out.suffix.lower() not in PAGES or not out.is_file()):
        raise MnemoError(f"{out} exists and is not a page of HTML: choose another path with --out")
    from mnemo.report.run_page import write_report

    for note in write_report(paths, out, title=args.title):
        print(f"mnemo: left out: {note}", file=sys.stderr)
    print(out)
    return 0


def locate(name: str) -> Path:
    """The run of that name under runs/, or at that path; if neither is a run, one of them that is a folder."""
    candidates = (RUNS / name, Path(name))
    runs, folders = (list(filter(test, candidates)) for test in (is_run, Path.is_dir))
    found = next(iter([*runs, *folders]), shipped_model(name) or Path(name))
    if not found.exists():
        raise no_run(name)
    return found


def inside(folder: Path) -> list[Path]:
    """The runs in a folder of runs; the folder itself if it is a run or holds none."""
    if is_run(folder) or not folder.is_dir():
        return [folder]
    return sorted(path for path in folder.iterdir() if is_run(path)) or [folder]
