"""Data of the page Papers: claims, verdicts, tables and figures of the experiments with stored results."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mnemo.errors import shorten
from mnemo.papers import every_experiment
from mnemo.papers.evidence import Evidence
from mnemo.papers.experiment import Budget, Experiment
from mnemo.papers.headlines import headlines
from mnemo.papers.main_figures import MainFigure, main_figures
from mnemo.papers.pages import build_page, has_results, outline
from mnemo.papers.store import CELLS, RESULTS, Found, grid_folder, load_grid
from mnemo.report.experiment_page import ExperimentPage
from mnemo.report.figure import Figure
from mnemo.report.svg import standalone
from mnemo.serving.errors import not_found
from mnemo.serving.studio.answers import NO_STORE, computed

LAPTOP = "mnemo reproduce laptop-xl --budget laptop"
"""An experiment that takes minutes on a CPU."""
Grid = tuple[Experiment, Budget]
Stamp = tuple[Path | None, float]
"""Folder of the results, and when it was written."""


class PaperPages:
    """Results are loaded again only after their files have changed: verdicts and figures take seconds."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._outlines: dict[tuple[str, str], tuple[Stamp, ExperimentPage]] = {}
        self._main: tuple[list[Stamp], list[MainFigure]] | None = None
        self._pages: dict[tuple[str, str], tuple[Stamp, ExperimentPage]] = {}
        # Matplotlib draws figures, and must not be used by two threads at once.
        self._lock = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/studio/api/papers", computed(self._list)),
            Route("/studio/api/papers/main", computed(self._main_claims)),
            Route("/studio/api/paper", computed(self._detail)),
            Route("/studio/api/figure", computed(self._figure)),
        ]

    def _list(self, request: Request) -> Any:
        with self._lock:
            found = [self._entry(*grid) for grid in self._grids()]
        return {"folders": [str(folder) for folder in self._folders], "experiments": found, "command": LAPTOP}

    def _grids(self) -> list[Grid]:
        experiments = every_experiment().values()
        return [
            (experiment, budget)
            for experiment in experiments
            for budget in experiment.budgets
            if self._grid(experiment, budget) is not None
        ]

    def _grid(self, experiment: Experiment, budget: Budget) -> Path | None:
        """The folder of the results; None if there are none."""
        found = (folder for folder in self._folders if has_results(folder, experiment, budget))
        return next((grid_folder(folder, experiment.name, budget) for folder in found), None)

    def _entry(self, experiment: Experiment, budget: Budget) -> dict[str, Any]:
        return _summary(self._outline(experiment, budget))

    def _outline(self, experiment: Experiment, budget: Budget) -> ExperimentPage:
        key, stamp = (experiment.name, budget), self._stamp(experiment, budget)
        if self._outlines.get(key, (None,))[0] != stamp:
            self._outlines[key] = (stamp, outline(experiment, self._load(experiment, budget)))
        return self._outlines[key][1]

    def _main_claims(self, request: Request) -> Any:
        with self._lock:
            drawn, rows = self._main_figures(), headlines(Evidence(self._folders))
        figures = [{"paper": each.paper, "main_claim": each.claim, **_figure(each.figure)} for each in drawn]
        return {"figures": figures, "headlines": [row._asdict() for row in rows]}

    def _main_figures(self) -> list[MainFigure]:
        stamps = [self._stamp(*grid) for grid in self._grids()]
        if self._main is None or self._main[0] != stamps:
            self._main = (stamps, main_figures(Evidence(self._folders)))
        return self._main[1]

    def _load(self, experiment: Experiment, budget: Budget) -> Found:
        grid = self._grid(experiment, budget)
        if grid is None:
            raise not_found(f"the results of {experiment.name} were removed")
        return load_grid(grid, experiment, budget)

    def _stamp(self, experiment: Experiment, budget: Budget) -> Stamp:
        grid = self._grid(experiment, budget)
        paths = [] if grid is None else [path for path in (grid / RESULTS, grid / CELLS) if path.exists()]
        return grid, max((path.stat().st_mtime for path in paths), default=0.0)

    def _page(self, request: Request) -> ExperimentPage:
        name, budget = request.query_params.get("name", ""), request.query_params.get("budget", "")
        for experiment, its_budget in self._grids():
            if (experiment.name, its_budget) == (name, budget):
                key, stamp = (name, budget), self._stamp(experiment, its_budget)
                with self._lock:
                    if self._pages.get(key, (None,))[0] != stamp:
                        self._pages[key] = (stamp, build_page(experiment, self._load(experiment, its_budget)))
                    return self._pages[key][1]
        raise not_found(f"there are no results of '{shorten(name, 80)}' at budget '{shorten(budget, 20)}'")

    def _detail(self, request: Request) -> Any:
        page = self._page(request)
        return {
            **_summary(page),
            "lead": page.lead,
            "about_verdicts": page.about_verdicts,
            "tables": [asdict(table) for table in page.tables],
            "figures": [_figure(figure) for figure in page.figures],
            "samples": [asdict(sample) for sample in page.samples],
            "notes": list(page.notes),
            "facts": [list(fact) for fact in page.facts],
            "problems": list(page.problems),
            "command": f"mnemo reproduce {page.name} --budget {page.budget}",
        }

    def _figures(self, request: Request) -> Sequence[Figure]:
        """Figures of the named experiment; without a name those of the main claims."""
        if "name" in request.query_params:
            return self._page(request).figures
        with self._lock:
            return [each.figure for each in self._main_figures()]

    def _figure(self, request: Request) -> Any:
        slug = request.query_params.get("slug", "")
        for figure in self._figures(request):
            if figure.slug == slug:
                svg = standalone(figure.svg, dark=request.query_params.get("theme") == "dark")
                # Opened as a page of its own, a picture could otherwise run scripts.
                policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
                return Response(svg, media_type="image/svg+xml", headers=NO_STORE | policy)
        raise not_found(f"there is no figure '{shorten(slug, 80)}'")


def _summary(page: ExperimentPage) -> dict[str, Any]:
    """What the list of experiments shows of each, and its page first."""
    return {
        "name": page.name,
        "budget": page.budget,
        "title": page.title,
        "paper": page.paper,
        "covers": list(page.covers),
        "data": page.data,
        "claim": page.claim,
        "verdicts": [asdict(verdict) for verdict in page.verdicts],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    width, height = figure.size
    return {
        "slug": figure.slug,
        "title": figure.title,
        "caption": figure.caption,
        "description": figure.description,
        "width": width,
        "height": height,
        "headers": list(figure.numbers.headers),
        "rows": [list(row) for row in figure.numbers.rows],
    }
