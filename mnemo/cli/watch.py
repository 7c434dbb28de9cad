"""Show the curves of a run while another process trains it: losses, learning rate, speed, time left.

    mnemo watch                   the run that was written to last
    mnemo watch RUN               another run
    mnemo watch RUN --once        one picture, without waiting

On a terminal the picture is drawn again every few seconds; elsewhere every new measurement is a line. It ends when the
training ends; Ctrl-C ends it earlier, and never the training.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mnemo.cli import console
from mnemo.cli.watching import format_evaluation, format_loss, format_status
from mnemo.errors import MnemoError
from mnemo.report.run_curves import terminal_curves
from mnemo.report.runs import Run, read_run
from mnemo.report.terminal_plot import Row, draw
from mnemo.storage.run_folder import RUNS, find_run, is_training, last_written, run_folders
from mnemo.training import Status

COLORS = ("cyan", "yellow")
RECENT = 10
"""Logged steps from which the speed is computed."""
MOST_LINES = 24
"""Lines of the largest picture."""


@dataclass(frozen=True, kw_only=True)
class Args:
    run: Annotated[str | None, tyro.conf.Positional] = None
    """A run's folder, or its name under runs/; if unset, the run that was written to last."""
    once: bool = False
    """Show one picture and end."""
    every: float = 2.0
    """Seconds between two looks at the run."""
    json: bool = False
    """Print the present numbers as JSON and end."""


def run(args: Args) -> int:
    if not args.every > 0:
        raise MnemoError(f"--every {args.every:g} must be positive")
    folder = _last_written() if args.run is None else find_run(args.run)
    if args.json:
        console.print_json(_answer(_load(folder), folder))
    elif args.once:
        _print_picture(_load(folder), folder)
    elif sys.stdout.isatty():
        _watch_live(folder, args.every)
    else:
        _follow(folder, args.every, _Lines().show)
    return 0


def _last_written() -> Path:
    folders = run_folders()
    if not folders:
        raise MnemoError(f"there is no run in {RUNS}: name the folder of one")
    return max(folders, key=last_written)


def _load(folder: Path) -> Run:
    return read_run(folder, folder.name)


def _follow(folder: Path, every: float, show: Callable[[Run], None]) -> Run:
    """Show the run again and again until no process trains it."""
    while True:
        # Looked up before the files are loaded: what a process writes at its end is then shown as well.
        goes_on, found = is_training(folder), _load(folder)
        show(found)
        if goes_on is False or (goes_on is None and found.last_step >= _steps(found)):
            return found
        time.sleep(every)


def _steps(found: Run) -> int:
    return found.recipe.train.steps if found.recipe is not None else found.last_step


def seconds_left(found: Run) -> float:
    """From the time between the last logged steps; NaN if there are too few."""
    recent = found.timing[-RECENT:]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return math.nan
    (first, began, _), (last, now, _) = recent[0], recent[-1]
    return max(0, _steps(found) - found.last_step) * (now - began) / (last - first)


def status(found: Run) -> Status | None:
    """The newest numbers; None before the first are logged."""
    if not found.train:
        return None
    rate = found.timing[-1][2] if found.timing else 0.0
    newest = found.train[-1]
    return Status(newest.step, _steps(found), newest.loss, found.lr or 0.0, rate, seconds_left(found))


def _unit(found: Run) -> str:
    return str(found.corpus.get("unit"))


def headline(found: Run, training: bool | None) -> str:
    """Step, losses, learning rate, speed and time left on one line."""
    now = status(found)
    if now is None:
        return f"{found.name}: nothing is logged yet" + ("" if training else ", and no process trains it")
    best = "" if found.best is None else f", best valid {format_loss(found.best.loss, _unit(found))}"
    if training:
        return f"{found.name}: {format_status(now, _unit(found))}{best}"
    end = "finished" if now.step >= now.steps else "not training"
    return f"{found.name}: {end} at step {now.step:,} of {now.steps:,}, {format_loss(now.loss, _unit(found))}{best}"


def _answer(found: Run, folder: Path) -> dict[str, Any]:
    now = status(found)
    return {
        "run": str(folder),
        "training": is_training(folder),
        "status": None if now is None else now._asdict(),
        "best": None if found.best is None else {"step": found.best.step, "loss": found.best.loss},
        "unit": found.corpus.get("unit"),
    }


class _Lines:
    """Prints measurements that were not printed before."""

    def __init__(self) -> None:
        self._train, self._valid = 0, 0

    def show(self, found: Run) -> None:
        now, unit = status(found), _unit(found)
        if now is not None and len(found.train) > self._train:
            print("step " + format_status(now, unit), flush=True)
        for at in range(self._valid, len(found.valid)):
            metric = found.valid[at]
            is_best = metric.loss <= min(earlier.loss for earlier in found.valid[: at + 1])
            print(format_evaluation(metric.step, metric.loss, is_best, unit), flush=True)
        # A resumed run is cut back to its checkpoint, and measures some steps again.
        self._train, self._valid = len(found.train), len(found.valid)


def _print_picture(found: Run, folder: Path) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(_picture(found, is_training(folder), Console().size))


def _watch_live(folder: Path, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    output = Console(highlight=False)
    try:
        with Live(console=output, auto_refresh=False) as live:
            _follow(
                folder,
                every,
                lambda found: live.update(_picture(found, is_training(folder), output.size), refresh=True),
            )
    except KeyboardInterrupt:
        print(f"the training goes on; mnemo watch {folder} shows it again", file=sys.stderr)


def _picture(found: Run, training: bool | None, size: Any) -> Any:
    """The headline and the curves, as wide as the terminal."""
    from rich.text import Text

    height = min(MOST_LINES, max(8, size.height - 3))
    rows: list[Row] = draw(terminal_curves(found), width=min(size.width - 1, 120), height=height)
    text = Text(headline(found, training) + "\n")
    for number, row in enumerate(rows):
        for piece in row:
            text.append(piece.text, style="dim" if piece.curve is None else COLORS[piece.curve])
        text.append("\n" if number < len(rows) - 1 else "")
    return text
