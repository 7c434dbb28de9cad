"""Train, measure and sample small memory transformers, in under three minutes on two CPU cores.

Trains the same small model with and without memory on a task that needs the previous segment, every kind of memory on
a shorter task, and a byte model on the source code of your Python installation; measures how much memory helps; writes
a sample and a report, whose path is the last line. Needs no download; the next demo replaces its folder.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mnemo import cli
from mnemo.cli.console import format_time, progress
from mnemo.cli.watching import watching
from mnemo.errors import MnemoError
from mnemo.lazy import LazyModule

if TYPE_CHECKING:
    from mnemo.cli import demo_training as demo
    from mnemo.cli.demo_training import DemoSize, TimeLimit
    from mnemo.training import Outcome
else:
    demo = LazyModule("mnemo.cli.demo_training")

TITLE = "What a memory is worth"
LEAD = (
    "First, one small model with and without memory on a task that needs the previous segment: repeat what it showed. "
    "Next, every kind of memory on a short version of that task. "
    "Then a byte model that reads the source text of this machine's own Python, is scored with shorter and longer "
    "memories, and writes."
)
SAMPLING = ("--prompt", "def ", "--temperature", "0.7", "--seed", "1")
PHASES = {
    "the default corpus: the source text of your own Python": 3.0,
    "a small model with memory learns to repeat the segment before": 8.0,
    "the same model without memory": 6.0,
    "every kind of memory on a short version of that task": 18.0,
    "a byte model learns to read Python": 50.0,
    "what memory is worth to it": 10.0,
    "it writes": 4.0,
    "loss by position, with memory": 3.0,
    "loss by position, without": 3.0,
    "the report": 1.0,
}
"""The phases and their seconds on two cores, from which the remaining time is estimated."""


@dataclass(frozen=True, kw_only=True)
class Args:
    out: Path = Path("runs/demo")
    """Folder for the demo's runs and its report; an earlier demo there is replaced."""
    quick: bool = False
    """A few steps of everything, to test that it works; the models learn nothing."""


def run(args: Args) -> int:
    size = demo.QUICK if args.quick else demo.FULL
    demo.create_demo_folder(args.out)
    with demo.single_threaded():
        _show(args.out, size)
    print(args.out / "report.html")
    return 0


def _show(out: Path, size: DemoSize) -> None:
    from mnemo.data.prepare import load

    phases = _Phases()
    with phases.next():
        load("python", show=progress)
    for name, memory in demo.RECALL_RUNS.items():
        with phases.next(), _time_limit(phases.start + size.recall_seconds) as limit:
            _check(demo.train_recall(out / name, memory, size, limit), limit)
    with phases.next():
        for name in demo.SHORT_RECALL_RUNS:
            with _time_limit(phases.start + size.short_seconds) as limit:
                _check(demo.train_short_recall(out / name, name, size, limit), limit)
    with phases.next(), _time_limit(phases.start + size.byte_seconds) as limit:
        _check(demo.train_bytes(out / demo.BYTES, size, limit), limit)
    for argv in _measurements(out / demo.BYTES, size, hurried=limit.expired):
        with phases.next(argv):
            _verb(argv) if phases.elapsed() < size.seconds else _skip()
    with phases.next():
        _report(out)
    print(f"done in {format_time(phases.elapsed())}; open this page in a browser:")


class _Phases:
    """Prints each phase with the remaining time, scaled by the speed so far."""

    def __init__(self) -> None:
        self.start, self._done = time.monotonic(), 0

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @contextmanager
    def next(self, argv: Sequence[str] = ()) -> Iterator[None]:
        number, what = f"[{self._done + 1}/{len(PHASES)}]", list(PHASES)[self._done]
        command = f": mnemo {shlex.join(argv)}" if argv else ""
        print(f"{number} {what}{command} ({format_time(self._left())} left)", file=sys.stderr, flush=True)
        yield
        self._done += 1

    def _left(self) -> float:
        expected = list(PHASES.values())
        before, rest = sum(expected[: self._done]), sum(expected[self._done :])
        slowness = self.elapsed() / before if self._done > 2 else 1.0
        return rest * slowness


@contextmanager
def _time_limit(deadline: float) -> Iterator[TimeLimit]:
    with watching() as watcher:
        watcher.unit = "byte"
        yield demo.TimeLimit(watcher, deadline)


def _check(outcome: Outcome, limit: TimeLimit) -> None:
    if outcome.signal is not None and not limit.expired:
        raise KeyboardInterrupt


def _measurements(folder: Path, size: DemoSize, hurried: bool) -> list[list[str]]:
    """The commands that measure the byte model; a slow machine scores fewer symbols."""
    symbols = size.symbols // 4 if hurried else size.symbols
    scored = ["eval", str(folder), "--limit", str(symbols)]
    return [
        [*scored, "--sweep-memory", ",".join(map(str, size.sweep))],
        ["generate", str(folder), "--tokens", str(size.sample), *SAMPLING],
        [*scored, "--by-position", "--memory", str(size.sweep[-1])],
        [*scored, "--by-position", "--no-memory"],
    ]


def _verb(argv: list[str]) -> None:
    code = cli.main(argv)
    if code:
        raise MnemoError(f"mnemo {shlex.join(argv)} ended with code {code}")


def _skip() -> None:
    print("out of time: skipped", file=sys.stderr)


def _report(out: Path) -> None:
    from mnemo.report import write_report

    runs = [out / name for name in (*demo.RECALL_RUNS, *demo.SHORT_RECALL_RUNS, demo.BYTES)]
    write_report(runs, out / "report.html", title=TITLE, lead=LEAD)
