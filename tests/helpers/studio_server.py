"""A studio with the model that comes with the package, on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from helpers.http_server import RunningServer, running, serial

from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore
from mnemo.serving.studio import StudioSettings, studio_routes
from mnemo.session.text_run import OpenedRun, with_tokenizer
from mnemo.storage.run_folder import open_run
from mnemo.storage.shipped import DEFAULT


@cache
def shipped_run() -> OpenedRun:
    return with_tokenizer(open_run(DEFAULT, device="cpu"))


@contextmanager
def studio_server(
    folder: Path, studio: StudioSettings | None = None, settings: Settings | None = None
) -> Iterator[RunningServer]:
    """`folder`: for sessions, transcripts and, unless `studio` names another, runs."""
    model = serial(shipped_run(), DEFAULT)
    store = SessionStore(folder / "served", [model.sessions])
    studio = studio or StudioSettings(runs=folder / "runs")
    routes = studio_routes(replace(studio, transcripts=folder / "transcripts"))
    with running([model], store, settings, routes) as server:
        yield server
