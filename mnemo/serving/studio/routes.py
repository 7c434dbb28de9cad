"""All routes of the studio."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starlette.routing import BaseRoute

from mnemo.serving.studio.paper_pages import PaperPages
from mnemo.serving.studio.playground import Playground
from mnemo.serving.studio.run_pages import RunPages
from mnemo.serving.studio.shell import shell_routes
from mnemo.storage.run_header import RUNS


@dataclass(frozen=True, kw_only=True)
class StudioSettings:
    runs: Path = RUNS
    """Folder of runs."""
    results: Path = Path("results")
    """Folder of the papers' results, as `mnemo reproduce --out` writes it."""
    transcripts: Path | None = None
    """Folder for the texts that the playground shows; None: they are lost when the server stops."""


def studio_routes(settings: StudioSettings) -> list[BaseRoute]:
    """Pages, assets and JSON of the studio. JSON routes come first: the pages' route matches every name."""
    pages = (Playground(settings.transcripts), RunPages(settings.runs), PaperPages(settings.results))
    return [*(route for page in pages for route in page.routes()), *shell_routes()]
