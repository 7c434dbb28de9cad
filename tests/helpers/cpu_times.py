"""Processor seconds of each test, child processes included: `pytest --cpu-times=FILE`.

Processor time hardly depends on what else the machine is doing, so slow tests can be found on a busy machine.
Each line holds processor seconds, wall seconds and the test's name, the most expensive test first.
The first test that needs a shared fixture is charged with the time of that fixture.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """Seconds of this process, of the children it has waited for, and of all descendants that still run."""
    return sum(os.times()[:4]) + sum(_seconds_by_process(os.getpid()))


def _seconds_by_process(parent: int) -> Iterator[float]:
    """Seconds of every descendant of `parent` together with the children that it has waited for."""
    for child in _children(parent):
        with suppress(OSError):  # the process has ended
            # The name in parentheses may hold spaces; the fields after it are state, parent and so on.
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            yield sum(int(ticks) for ticks in fields[11:15]) / TICKS
        yield from _seconds_by_process(child)


def _children(parent: int) -> list[int]:
    """Of all threads of a process; a table of the kernel, so that no other process has to be looked at."""
    found = []
    for table in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in table.read_text().split()]
    return found


def register(config: pytest.Config) -> None:
    """Measure if the option is given; with several workers, their common parent writes the file."""
    path: Path | None = config.getoption("--cpu-times")
    if path is not None:
        config.pluginmanager.register(_Stopwatch())
        if "PYTEST_XDIST_WORKER" not in os.environ:
            config.pluginmanager.register(_Table(path))


class _Stopwatch:
    """Adds the seconds since the last report to every report of a test's phase."""

    def pytest_runtest_logstart(self) -> None:
        self.last = processor_seconds(), time.perf_counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = processor_seconds(), time.perf_counter()
        report.seconds = [after - before for before, after in zip(self.last, now, strict=True)]
        self.last = now
        return report


class _Table:
    """Sums the phases of each test, and writes the file every minute and at the end."""

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, time.monotonic()
        self.processor: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        processor, wall = getattr(report, "seconds", (0.0, 0.0))
        self.processor[report.nodeid] += processor
        self.wall[report.nodeid] += wall
        if time.monotonic() > self.written + 60:
            self.write()

    def pytest_sessionfinish(self) -> None:
        self.write()

    def write(self) -> None:
        """Write all results so far, so that an interrupted run leaves a table too."""
        self.written = time.monotonic()
        slowest_first = sorted(self.processor, key=lambda name: -self.processor[name])
        lines = [f"{self.processor[name]:.2f}\t{self.wall[name]:.2f}\t{name}\n" for name in slowest_first]
        self.path.write_text("".join(lines), encoding="utf-8")
