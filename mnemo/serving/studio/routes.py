"""All routes of the studio."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from starlette.routing import BaseRoute

from mnemo.serving.studio.demo_training import DemoTraining
from mnemo.serving.studio.memory_pages import MemoryPages
from mnemo.serving.studio.paper_pages import PaperPages
from mnemo.serving.studio.playground import Playground
from mnemo.serving.studio.run_pages import RunPages
from mnemo.serving.studio.shell import shell_routes
from mnemo.storage.run_header import RUNS

REPOSITORY = Path(__file__).resolve().parents[3]


def default_results() -> tuple[Path, ...]:
    """The user's own results, and those of a checkout of Mnemo: in the working folder, or around this package."""
    folders = [Path("runs/reproduce"), Path("results")]
    if (REPOSITORY / "pyproject.toml").is_file():
        folders.append(REPOSITORY / "results")
    return tuple(folders)


@dataclass(frozen=True, kw_only=True)
class StudioSettings:
    runs: Path = RUNS
    """Folder of runs."""
    results: tuple[Path, ...] = field(default_factory=default_results)
    """Folders of the papers' results, as `mnemo reproduce --out` writes them; the first with an experiment counts."""
    transcripts: Path | None = None
    """Folder for the texts that the playground shows; None: they are lost when the server stops."""


def studio_routes(settings: StudioSettings) -> list[BaseRoute]:
    """Pages, assets and JSON of the studio. JSON routes come first: the pages' route matches every name."""
    playground = Playground(settings.transcripts)
    memory = MemoryPages(settings.runs, playground.transcripts)
    demo = DemoTraining(settings.runs)
    pages = (playground, RunPages(settings.runs), demo, memory, PaperPages(settings.results))
    return [*(route for page in pages for route in page.routes()), *shell_routes()]
