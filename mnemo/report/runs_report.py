"""Write the page that shows runs side by side, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mnemo.report.figure_files import write_figures
from mnemo.report.files import write_text
from mnemo.report.run_page import PICTURE, build_page
from mnemo.report.runs import read_runs


def write_report(runs: Sequence[Path], out: Path, *, title: str | None = None, lead: str | None = None) -> list[str]:
    """Write the page `out`, and its figures as SVG and CSV in a folder next to it.

    Returns notes about missing and broken files and runs, which the page leaves out and lists too.
    """
    found, notes = read_runs(runs)
    folder = out.with_name(f"{out.stem}-files")
    page = build_page(found, notes, folder=folder.name, title=title, lead=lead)
    write_figures(folder, page.figures, {} if page.picture is None else {PICTURE: page.picture})
    write_text(out, page.html)
    return [*notes, *(f"{run.name}: {note}" for run in found for note in run.notes)]
