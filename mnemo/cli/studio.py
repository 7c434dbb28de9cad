"""Open pages in the browser: a playground, what fills a memory, runs with live curves, the papers' experiments.

    mnemo studio                   with the run that was trained last, the model that comes with mnemo, and the demo's
    mnemo studio RUN ...           with other models; NAME=RUN names one, as in mnemo serve
    mnemo studio --no-browser      print the address only

Nothing has to be trained first. Without a run, the page Runs offers to train the demo, and shows its curves meanwhile.
The same server answers the clients of OpenAI's API (mnemo serve). It listens on this machine only, needs no network,
and stops with Ctrl-C.
"""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mnemo.cli.serve import ServeArgs, checked
from mnemo.errors import MnemoError
from mnemo.storage.run_header import RUNS, TOKENIZER, default_run, load_header
from mnemo.storage.shipped import DEFAULT, shipped_model

if TYPE_CHECKING:
    from mnemo.serving.served_model import ServedModel
    from mnemo.serving.settings import Settings

DEMO = Path("demo/bytes")
"""The demo's model of text, in the folder of runs."""


@dataclass(frozen=True, kw_only=True)
class Args(ServeArgs):
    folder: Path = RUNS
    """Folder of runs that the page Runs lists."""
    results: Path | None = None
    """Folder of results for the page Papers, made by mnemo reproduce --out; if unset, runs/reproduce and results."""
    browser: bool = True
    """Open the browser; --no-browser prints the address only."""


def run(args: Args) -> int:
    named = args if args.runs else replace(args, runs=default_models(args.folder))
    settings, models = checked(named)
    from mnemo.cli.server import serve
    from mnemo.serving.studio import StudioSettings, studio_routes

    chosen = StudioSettings(runs=args.folder, transcripts=args.sessions / "transcripts")
    if args.results is not None:
        chosen = replace(chosen, results=(args.results,))
    return serve(args, settings, models, studio_routes(chosen), greet=_open_browser if args.browser else _greet)


def default_models(runs: Path) -> tuple[str, ...]:
    """The run that was trained last, the model that comes with mnemo and the demo's, if they were trained on text."""
    demo, shipped = runs / DEMO, shipped_model(DEFAULT)
    folders: list[Path] = [default_run(runs), *([] if shipped is None else [shipped]), demo]
    named = {("demo" if folder == demo else folder.name): folder for folder in folders if _can_be_served(folder)}
    return tuple(f"{name}={folder}" for name, folder in named.items())


def _can_be_served(folder: Path) -> bool:
    try:
        return (folder / TOKENIZER).is_file() and bool(load_header(folder))
    except MnemoError:
        return False  # a damaged run must not keep the studio from starting: the page Runs shows the reason


def _greet(address: str, models: list[ServedModel], settings: Settings) -> None:
    names = ", ".join(model.name for model in models)
    print(f"mnemo: the studio is at {address}/studio with {names} (Ctrl-C stops)", file=sys.stderr)
    sys.stderr.flush()


def _open_browser(address: str, models: list[ServedModel], settings: Settings) -> None:
    _greet(address, models, settings)
    if not webbrowser.open(f"{address}/studio"):
        print("mnemo: there is no browser to open here: open that address in one", file=sys.stderr, flush=True)
