"""The pictures and lines of `mnemo watch`."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnemo.cli import console
from mnemo.cli.run_arguments import format_loss
from mnemo.cli.watch import Args
from mnemo.cli.watching import format_evaluation, format_status
from mnemo.report.run_curves import terminal_curves
from mnemo.report.run_status import status
from mnemo.report.runs import Run, read_run
from mnemo.report.terminal_plot import Row, draw
from mnemo.storage.run_folder import in_use

COLORS = ("cyan", "yellow")
MOST_LINES = 24
"""Lines of the largest picture."""


def watch(args: Args, folder: Path) -> None:
    """Show a run as the arguments say."""
    if args.json:
        console.print_json(_answer(_load(folder), folder))
    elif args.once:
        _print_picture(_load(folder), folder)
    elif sys.stdout.isatty():
        _watch_live(folder, args.every)
    else:
        _follow(folder, args.every, _Lines().show)


def _load(folder: Path) -> Run:
    return read_run(folder, folder.name)


def _follow(folder: Path, every: float, show: Callable[[Run], None]) -> None:
    """Show the run again and again until no process trains it."""
    while True:
        # Looked up before the files are loaded: what a process writes at its end is then shown as well.
        goes_on, found = in_use(folder), _load(folder)
        show(found)
        if not goes_on:
            return
        time.sleep(every)


def _unit(found: Run) -> str:
    return str(found.corpus.get("unit"))


def headline(found: Run, training: bool) -> str:
    """Step, losses, learning rate, speed and time left on one line."""
    now = status(found)
    if now is None:
        return f"{found.name}: nothing is logged yet" + ("" if training else ", and no process trains it")
    best = "" if found.best is None else f", best valid {format_loss(found.best.loss, _unit(found))}"
    if training:
        return f"{found.name}: {format_status(now, _unit(found))}{best}"
    end, loss = "finished" if now.step >= now.steps else "not training", format_loss(found.train[-1].loss, _unit(found))
    return f"{found.name}: {end} at step {now.step:,} of {now.steps:,}, {loss}{best}"


def _answer(found: Run, folder: Path) -> dict[str, Any]:
    now = status(found)
    return {
        "run": str(folder),
        "training": in_use(folder),
        "status": None if now is None else now._asdict(),
        "best": None if found.best is None else {"step": found.best.step, "loss": found.best.loss},
        "unit": found.corpus.get("unit"),
    }


class _Lines:
    """Prints measurements that were not printed before."""

    def __init__(self) -> None:
        self._train, self._valid = 0, 0

    def show(self, found: Run) -> None:
        for _, line in sorted([*self._trained(found), *self._evaluated(found)], key=lambda line: line[0]):
            print(line, flush=True)
        # A resumed run is cut back to its checkpoint, and measures some steps again.
        self._train, self._valid = len(found.train), len(found.valid)

    def _trained(self, found: Run) -> list[tuple[int, str]]:
        """The newest step and its line; nothing if it was printed before."""
        now = status(found)
        if now is None or len(found.train) <= self._train:
            return []
        return [(now.step, "step " + format_status(now, _unit(found)))]

    def _evaluated(self, found: Run) -> list[tuple[int, str]]:
        best = list(itertools.accumulate((metric.loss for metric in found.valid), min))
        new = list(zip(found.valid, best, strict=True))[self._valid :]
        return [
            (metric.step, format_evaluation(metric.step, metric.loss, metric.loss <= least, _unit(found)))
            for metric, least in new
        ]


def _print_picture(found: Run, folder: Path) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(_picture(found, in_use(folder), Console().size))


def _watch_live(folder: Path, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    output = Console(highlight=False)
    try:
        with Live(console=output, auto_refresh=False) as live:
            _follow(
                folder,
                every,
                lambda found: live.update(_picture(found, in_use(folder), output.size), refresh=True),
            )
    except KeyboardInterrupt:
        print(f"the training goes on; mnemo watch {folder} shows it again", file=sys.stderr)


def _picture(found: Run, training: bool, size: Any) -> Any:
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
