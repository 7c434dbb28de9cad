"""Write the page that shows runs side by side, and its figures as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mnemo.report.figure_files import write_figures
from mnemo.report.files import write_text
from mnemo.report.page_template import Headline
from mnemo.report.run_page import PICTURE, build_page
from mnemo.report.runs import Run, read_runs


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    lead: str | None = None,
    headline: Callable[[Sequence[Run]], Headline] | None = None,
) -> list[str]:
    """Write the page `out`, and its figures as SVG and CSV in a folder next to it.

    `headline`: the sentence and the figure that the page begins with, computed from the runs.
    Returns notes about missing and broken files and runs, which the page leaves out and lists too.
    """
    found, notes = read_runs(runs)
    folder = out.with_name(f"{out.stem}-files")
    first = None if headline is None else headline(found)
    page = build_page(found, notes, folder=folder.name, title=title, lead=lead, headline=first)
    write_figures(folder, page.figures, {} if page.picture is None else {PICTURE: page.picture})
    write_text(out, page.html)
    return [*notes, *(f"{run.name}: {note}" for run in found for note in run.notes)]
