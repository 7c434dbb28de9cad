"""The phases of `mnemo demo`, in their time: train, measure, write, report."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mnemo import cli
from mnemo.cli import demo_training as demo
from mnemo.cli.console import format_time, progress
from mnemo.cli.demo import Args
from mnemo.cli.demo_background import BackgroundTraining, available_cores
from mnemo.cli.demo_page import LEAD, TITLE, headline
from mnemo.cli.demo_time import Fitted, Throttled, enough_minutes, fit_steps
from mnemo.cli.demo_training import Comparison
from mnemo.cli.watching import watching
from mnemo.data.prepare import load
from mnemo.errors import MnemoError
from mnemo.report.run_page import write_report
from mnemo.training.single_thread import single_threaded

SAMPLING = ("--prompt", "def ", "--temperature", "0.7", "--seed", "1")
PHASES = {
    "the default corpus: the source text of your own Python": 3.0,
    "a small model learns to repeat the previous segment, with and without memory": 14.0,
    "every kind of memory on a short version of that task": 24.0,
    "a byte model learns to predict Python": 60.0,
    "the score of the byte model with shorter and longer memories": 12.0,
    "text written by the byte model": 4.0,
    "loss by position, with memory": 3.0,
    "loss by position, without": 3.0,
    "the report": 2.0,
}
"""The phases and their seconds on an idle core: a phase gets this share of the time."""
TASKS, BYTE_MODEL = slice(1, 3), 3
"""Phases that train models; with two cores, the byte model is trained while the others are."""
LEAST_REST = 5.0
"""Seconds for which the first core waits for the byte model, if both take equally long"""


def show_demo(args: Args) -> None:
    demo.create_demo_folder(args.out)
    with single_threaded():
        _Demo(args).show()


class _Demo:
    """One demo: its phases in order, and what had to be cut."""

    def __init__(self, args: Args) -> None:
        self._args, self._size = args, demo.QUICK if args.quick else demo.FULL
        self._beside = available_cores() > 1
        self._phases = _Phases(60 * args.minutes, self._beside)
        self._fitted: list[Fitted] = []
        self._skipped: list[str] = []

    def show(self) -> None:
        out, phases = self._args.out, self._phases
        with phases.next():
            load("python", show=progress)
        self._train()
        for argv in self._measurements(out / demo.BYTES):
            with phases.next(argv) as what:
                self._measure(argv, what)
        with phases.next():
            self._report()
        for line in self._cuts():
            print(line, file=sys.stderr)
        print(f"done in {format_time(phases.elapsed())}; open this page in a browser:")

    def _train(self) -> None:
        if not self._beside:
            for comparison in (demo.RECALL, demo.SHORT_RECALL, demo.BYTE_MODEL):
                with self._phases.next():
                    self._compare(comparison)
            return
        seconds = None if self._args.quick else self._phases.byte_model_seconds()
        byte_model = BackgroundTraining(self._args.out, self._size, seconds)
        try:
            for comparison in (demo.RECALL, demo.SHORT_RECALL):
                with self._phases.next():
                    self._compare(comparison)
            with self._phases.next(), watching() as watcher:
                for fitted in byte_model.finish(watcher):
                    self._note(fitted)
        finally:
            byte_model.stop()

    def _note(self, fitted: Fitted) -> None:
        """Keep how many steps are trained, and print it if they are fewer than planned."""
        self._fitted.append(fitted)
        if fitted.is_cut:
            print(f"cut to fit into {self._time}: {fitted}", file=sys.stderr, flush=True)

    def _compare(self, comparison: Comparison) -> None:
        size = self._size
        if not self._args.quick:
            fitted = fit_steps(comparison, size, self._phases.seconds())
            self._note(fitted)
            size = comparison.with_steps(size, fitted.steps)
        for name, recipe in comparison.recipes.items():
            with watching() as watcher:
                outcome = comparison.train(self._args.out / name, recipe(size), Throttled(watcher))
            if outcome.signal is not None:
                raise KeyboardInterrupt

    def _measurements(self, folder: Path) -> list[list[str]]:
        """The commands that measure the byte model; a slow machine scores fewer symbols."""
        size = self._size
        symbols = size.symbols // 4 if any(each.is_cut for each in self._fitted) else size.symbols
        scored = ["eval", str(folder), "--limit", str(symbols)]
        return [
            [*scored, "--sweep-memory", ",".join(map(str, size.sweep))],
            ["generate", str(folder), "--tokens", str(size.sample), *SAMPLING],
            [*scored, "--by-position", "--memory", str(size.sweep[-1])],
            [*scored, "--by-position", "--no-memory"],
        ]

    def _measure(self, argv: list[str], what: str) -> None:
        if self._phases.is_late and not self._args.quick:
            self._skipped.append(what)
            print("out of time: skipped", file=sys.stderr)
            return
        code = cli.main(argv)
        if code:
            raise MnemoError(f"mnemo {shlex.join(argv)} ended with code {code}")

    def _cuts(self) -> list[str]:
        """What was left out because of time, and how to get it; nothing if nothing was."""
        if self._args.quick:
            return ["--quick trains a few steps, which teach the models nothing: mnemo demo without it shows a memory"]
        cut = [str(each) for each in self._fitted if each.is_cut]
        if not (cut or self._skipped):
            return []
        slowness = max([each.slowness for each in self._fitted] + [self._phases.lateness])
        enough = enough_minutes(self._args.minutes, slowness)
        trained = f" All models of a comparison were cut alike. Trained: {'; '.join(cut)}." if cut else ""
        return [
            f"This machine is too slow or too busy for the whole demo in {self._time}.{trained}",
            *([f"Not measured: {'; '.join(self._skipped)}."] if self._skipped else []),
            f"For the whole demo: mnemo demo --minutes {enough} (or make demo MINUTES={enough})",
        ]

    @property
    def _time(self) -> str:
        return "1 minute" if self._args.minutes == 1 else f"{self._args.minutes:g} minutes"

    def _report(self) -> None:
        names = [name for each in (demo.RECALL, demo.SHORT_RECALL, demo.BYTE_MODEL) for name in each.recipes]
        write_report(
            [self._args.out / name for name in names],
            self._args.out / "report.html",
            title=TITLE,
            lead=LEAD,
            headline=lambda runs: headline(runs, self._cuts()),
        )


class _Phases:
    """Print each phase with the remaining time, scaled by the speed so far; divide the time among them."""

    def __init__(self, seconds: float, beside: bool) -> None:
        """`beside`: the byte model is trained beside the other models."""
        self._start, self._seconds, self._done = time.monotonic(), seconds, 0
        self._expected = list(PHASES.values())
        if beside:
            rest = self._expected[BYTE_MODEL] - sum(self._expected[TASKS])
            self._expected[BYTE_MODEL] = max(LEAST_REST, rest)

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def lateness(self) -> float:
        """Time that has passed, as a multiple of the whole time."""
        return self.elapsed() / self._seconds

    @property
    def is_late(self) -> bool:
        return self.lateness > 1

    def seconds(self) -> float:
        """The current phase's share of the remaining time."""
        return self._share(self._expected[self._done])

    def byte_model_seconds(self) -> float:
        """The share of the phases in which the byte model is trained beside the other models."""
        return self._share(sum(self._expected[self._done : BYTE_MODEL + 1]))

    def _share(self, expected: float) -> float:
        left = max(0.0, self._seconds - self.elapsed())
        return left * expected / sum(self._expected[self._done :])

    @contextmanager
    def next(self, argv: Sequence[str] = ()) -> Iterator[str]:
        number, what = f"[{self._done + 1}/{len(PHASES)}]", list(PHASES)[self._done]
        command = f": mnemo {shlex.join(argv)}" if argv else ""
        print(f"{number} {what}{command} ({format_time(self._left())} left)", file=sys.stderr, flush=True)
        yield what
        self._done += 1

    def _left(self) -> float:
        before, rest = sum(self._expected[: self._done]), sum(self._expected[self._done :])
        slowness = self.elapsed() / before if self._done > 1 else 1.0
        return rest * slowness
