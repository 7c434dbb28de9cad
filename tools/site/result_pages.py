"""Pages of the results: the overview in place of docs/RESULTS.md, and a page with figures for every experiment."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mnemo.papers.overview import site
from tools.site.navigation import Entry

FOLDER = PurePosixPath("docs")
OVERVIEW = FOLDER / "RESULTS.md"


class ResultPages(NamedTuple):
    overview: str
    pages: dict[Entry, str]
    files: dict[Path, bytes]
    """Figures and tables, by their path from the root of the repository."""


def result_pages(root: Path) -> ResultPages:
    """All pages that are made from the stored results; the side bar names the experiments."""
    made = site(root / "results", root / FOLDER)
    pages = {Entry(PurePosixPath(path).stem, FOLDER / path): text for path, text in made.pages.items()}
    files = {Path(FOLDER / path): text.encode() for path, text in made.files.items()}
    return ResultPages(made.overview, pages, files)
