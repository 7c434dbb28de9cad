"""Show a training run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from mnemo.cli.console import format_count, format_time
from mnemo.cli.run_arguments import format_loss
from mnemo.progress import Advance
from mnemo.training import Monitor, Status

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def watching(stream: TextIO | None = None) -> Iterator[Monitor]:
    """Show a live line on a terminal; elsewhere a plain line every time metrics are written, or progress is reported.

    Nothing is shown any more once the output is gone, for example with a closed terminal; the run goes on and saves.
    """
    wanted = stream or sys.stderr
    output = LosableOutput(wanted)
    if not wanted.isatty():
        yield _Lines(output)
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(bar_width=20),
        rich_progress.TextColumn("{task.fields[text]}", markup=False),
    )
    with rich_progress.Progress(*columns, console=Console(file=cast(TextIO, output))) as bars:
        yield _Live(bars)


class LosableOutput:
    """A text stream whose failures are ignored: what cannot be shown must not end a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding


def format_status(status: Status, unit: str) -> str:
    parts = (
        f"{status.step:,}/{status.steps:,}",
        *(() if status.loss is None else (format_loss(status.loss, unit),)),
        f"lr {status.lr:.2e}",
        f"{status.tokens_per_second:,.0f} tokens/s",
        f"{format_time(status.seconds_left)} left",
    )
    return "  ".join(parts)


def format_evaluation(step: int, loss: float, is_best: bool, unit: str) -> str:
    return f"step {step:,}: valid {format_loss(loss, unit)}" + (", the best so far" if is_best else "")


class _Lines:
    def __init__(self, output: LosableOutput) -> None:
        self._unit = ""
        self._output = output

    def started(self, unit: str) -> None:
        self._unit = unit

    def note(self, line: str) -> None:
        self._output.write(line + "\n")
        self._output.flush()

    def trained(self, status: Status) -> None:
        self.note("step " + format_status(status, self._unit))

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self.note(format_evaluation(step, loss, is_best, self._unit))

    @contextmanager
    def show(self, label: str, total: float | None = None, *, unit: str = "") -> Iterator[Advance]:
        yield _SlowWork(self, label, total, unit)


class _SlowWork:
    """Print a line every few seconds, and none if the work is done sooner."""

    def __init__(self, lines: _Lines, label: str, total: float | None, unit: str) -> None:
        self._lines, self._label, self._total, self._unit = lines, label, total, unit
        self._done, self._printed = 0.0, time.monotonic()

    def advance(self, count: float = 1, note: str = "") -> None:
        self._done += count
        if time.monotonic() - self._printed < SECONDS_BETWEEN_LINES:
            return
        self._printed = time.monotonic()
        self._lines.note(f"{self._label}: {format_count(self._done, self._total, self._unit)} {note}".rstrip())


class _Live:
    def __init__(self, bars: Any) -> None:
        self._unit = ""
        self._bars = bars
        self._training: Any = None
        self._loss: float | None = None

    def started(self, unit: str) -> None:
        self._unit, self._loss = unit, None

    def note(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def trained(self, status: Status) -> None:
        if self._training is None:
            self._training = self._bars.add_task("training", total=status.steps, text="")
        self._loss = self._loss if status.loss is None else status.loss  # the line has one place for it
        text = format_status(status._replace(loss=self._loss), self._unit)
        self._bars.update(self._training, completed=status.step, text=text)

    def evaluated(self, step: int, loss: float, is_best: bool) -> None:
        self.note(format_evaluation(step, loss, is_best, self._unit))

    @contextmanager
    def show(self, label: str, total: float | None = None, *, unit: str = "") -> Iterator[Advance]:
        task = self._bars.add_task(label, total=total, text="")
        try:
            yield _Task(self._bars, task, total, unit)
        finally:
            self._bars.remove_task(task)


class _Task:
    def __init__(self, bars: Any, task: Any, total: float | None, unit: str) -> None:
        self._bars, self._task, self._total, self._unit = bars, task, total, unit
        self._done = 0.0

    def advance(self, count: float = 1, note: str = "") -> None:
        self._done += count
        text = format_count(self._done, self._total, self._unit)
        self._bars.update(self._task, completed=self._done, text=f"{text} {note}".rstrip())
