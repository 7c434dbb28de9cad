"""Input and output of the verbs: text from a pipe, progress on stderr, tables and JSON on stdout."""

from __future__ import annotations

import json
import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from mnemo.errors import MnemoError
from mnemo.files.json_file import without_nan
from mnemo.progress import Advance
from mnemo.units import bits, perplexity

STDIN = "-"
"""In place of a file: the text from a pipe."""

CONTROL = {code: "\ufffd" for code in [*range(32), 127, *range(128, 160)] if chr(code) not in "\n\t"}
"""Control characters, which a terminal would obey, and their replacement."""


@contextmanager
def progress(
    label: str, total: float | None = None, *, unit: str = "", every: float = 5.0, stream: TextIO | None = None
) -> Iterator[Advance]:
    """Show progress: a bar on a terminal; elsewhere a plain line every few seconds and one at the end.

    `unit="B"` shows sizes in MB; `total=None`: the amount of work is unknown.
    """
    output = stream or sys.stderr
    if output.isatty():
        with _bar(label, total, unit, output) as bar:
            yield bar
        return
    lines = _Lines(label, total, unit, every, output)
    yield lines
    lines.finish()


@contextmanager
def _bar(label: str, total: float | None, unit: str, stream: TextIO) -> Iterator[Advance]:
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[count]}", markup=False),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}", markup=False),
    )
    with rich_progress.Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(label, total=total, count="", note="")
        yield _Bar(bar, task, total, unit)


class _Bar:
    def __init__(self, bar: Any, task: Any, total: float | None, unit: str) -> None:
        self._bar, self._task, self._total, self._unit = bar, task, total, unit
        self._done, self._note = 0.0, ""

    def advance(self, count: float = 1, note: str = "") -> None:
        self._done += count
        self._note = note or self._note
        shown = format_count(self._done, self._total, self._unit)
        self._bar.update(self._task, completed=self._done, count=shown, note=self._note)


class _Lines:
    def __init__(self, label: str, total: float | None, unit: str, every: float, stream: TextIO) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._every, self._stream = every, stream
        self._done, self._note = 0.0, ""
        self._start = self._printed = time.monotonic()

    def advance(self, count: float = 1, note: str = "") -> None:
        self._done += count
        self._note = note or self._note
        now = time.monotonic()
        if now - self._printed >= self._every:
            self._printed = now
            self._print(self._time_left(now))

    def finish(self) -> None:
        self._print("in " + format_time(time.monotonic() - self._start))

    def _time_left(self, now: float) -> str:
        if not self._total or not self._done:
            return ""
        return format_time((now - self._start) * (self._total / self._done - 1)) + " left"

    def _print(self, timing: str) -> None:
        parts = (format_count(self._done, self._total, self._unit), timing, self._note)
        print(f"{self._label}: " + ", ".join(part for part in parts if part), file=self._stream, flush=True)


def format_count(done: float, total: float | None, unit: str) -> str:
    """`3/12 files (25%)`, `1.5/6.0 MB (25%)`, or `3 files` without a total."""
    if unit == "B":
        numbers, unit = [f"{value / 1e6:.1f}" for value in (done, total) if value is not None], "MB"
    else:
        numbers = [f"{value:,.0f}" for value in (done, total) if value is not None]
    share = f" ({done / total:.0%})" if total else ""
    return "/".join(numbers) + (f" {unit}" if unit else "") + share


def format_loss(nats: float, in_bits: bool) -> str:
    """`1.2345 bpc` or `23.45 ppl`."""
    return f"{bits(nats):.4f} bpc" if in_bits else f"{perplexity(nats):.2f} ppl"


def format_time(seconds: float) -> str:
    """`8s`, `2m05s`, `3h20m`; `?` for NaN."""
    if math.isnan(seconds):
        return "?"
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def table(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> None:
    """Print aligned columns to stdout; columns of numbers are flush right."""
    print(format_table(rows, headers))


def format_table(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> str:
    rows = [list(row) for row in rows]
    numeric = [all(isinstance(row[i], (int, float, type(None))) for row in rows) for i in range(len(headers))]
    cells = [list(headers), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(row, widths, numeric) for row in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    aligned = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, numeric, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def print_json_line(value: Any) -> None:
    """Print one line of JSON to stdout, at once."""
    print(json.dumps(without_nan(value), allow_nan=False), flush=True)


def print_json(value: Any) -> None:
    """Print valid JSON to stdout; NaN and infinities, which JSON does not have, become null."""
    print(json.dumps(without_nan(value), indent=2, allow_nan=False))


def write_text(output: TextIO, text: str) -> None:
    """Write a model's text at once; control characters, which a terminal would obey, are replaced on one."""
    shown = text.translate(CONTROL) if output.isatty() else text
    encoding = output.encoding or "utf-8"
    output.write(shown.encode(encoding, "replace").decode(encoding))
    output.flush()


def dim(line: str, stream: TextIO | None = None) -> None:
    """Print a line on stderr, less bright than the text around it if that is a terminal."""
    from rich.console import Console

    output = stream or sys.stderr
    if output.isatty():
        Console(file=output).print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    else:
        print(line, file=output, flush=True)


def piped_text() -> bytes:
    if sys.stdin.isatty():
        raise MnemoError(f"{STDIN} takes the text from a pipe, but there is none: cat TEXT | mnemo VERB {STDIN}")
    return sys.stdin.buffer.read()


def interrupted(number: int) -> int:
    """Say on stderr that a grid goes on later; return the exit code for the signal that has stopped it."""
    drop_lost_output(pipes=True)
    print("mnemo: interrupted; the same command goes on", file=sys.stderr)
    return 128 + number


def drop_lost_output(pipes: bool) -> None:
    """Let output go nowhere whose terminal was closed: printing would end the command with an error.

    `pipes`: also if the reader of a pipe or socket has ended, as `tee` at Ctrl-C. Otherwise, that ends the command.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # no file, as in a notebook
            handle = stream.fileno()
            kind = os.fstat(handle).st_mode
            if _is_closed_terminal(handle, kind) or (pipes and _is_closed_pipe(handle, kind)):
                os.dup2(os.open(os.devnull, os.O_WRONLY), handle)


def _is_closed_terminal(handle: int, kind: int) -> bool:
    return stat.S_ISCHR(kind) and not os.isatty(handle)


def _is_closed_pipe(handle: int, kind: int) -> bool:
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) or not hasattr(select, "poll"):
        return False
    asked = select.poll()
    asked.register(handle, 0)
    return bool(asked.poll(0))  # nothing was asked for, so that only errors are reported
