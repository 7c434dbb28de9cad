"""A page that shows runs side by side: curves, bars, memory sweeps, plans, samples, configurations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mnemo.report.files import csv_text, read_json, write_text
from mnemo.report.page import FORMAT_VERSION, PICTURE, Page, build_page
from mnemo.report.runs import is_run, read_runs
from mnemo.report.svg import standalone

__all__ = ["is_run", "write_report"]

INDEX = "index.json"


def write_report(runs: Sequence[Path], out: Path, *, title: str | None = None, lead: str | None = None) -> list[str]:
    """Write the page `out`, and its figures as SVG and CSV in a folder next to it.

    Returns what was left out, as the page says it: files that are missing or broken, runs that are none.
    """
    found, notes = read_runs(runs)
    folder = out.with_name(f"{out.stem}-files")
    page = build_page(found, notes, folder=folder.name, title=title, lead=lead)
    _write_figures(folder, page)
    write_text(out, page.html)
    return [*notes, *(f"{run.name}: {note}" for run in found for note in run.notes)]


def _write_figures(folder: Path, page: Page) -> None:
    files = {f"{figure.slug}.svg": standalone(figure.svg) for figure in page.figures}
    files |= {f"{figure.slug}.csv": csv_text(figure.numbers.headers, figure.numbers.rows) for figure in page.figures}
    if page.picture is not None:
        files[PICTURE] = page.picture
    earlier = _written_earlier(folder)
    for name, text in files.items():
        write_text(folder / name, text)
    write_text(folder / INDEX, json.dumps({"format_version": FORMAT_VERSION, "files": sorted(files)}, indent=1) + "\n")
    for name in earlier - set(files):
        (folder / name).unlink(missing_ok=True)


def _written_earlier(folder: Path) -> set[str]:
    """Figures in the folder that an earlier report lists as its own."""
    listed = (read_json(folder / INDEX, []) or {}).get("files")
    there = {path.name for kind in ("svg", "csv") for path in folder.glob(f"*.{kind}")}
    return {name for name in there if name in listed} if isinstance(listed, list) else set()
