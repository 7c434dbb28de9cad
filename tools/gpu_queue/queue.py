"""Run jobs one after the other until a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mnemo.errors import MnemoError
from mnemo.files.json_file import write_json
from mnemo.training.stop_signals import Stop
from tools.gpu_queue.collect import COLLECTED, STATE, collect
from tools.gpu_queue.machine import machine
from tools.gpu_queue.plan import Job, Plan

State = Literal["waiting", "running", "done", "failed", "stopped", "skipped"]
POLL_SECONDS, COLLECT_SECONDS = 0.2, 10.0
PATIENCE_SECONDS = 75.0
"""Between the request to stop and the end by force: more than `mnemo reproduce` gives its cells."""
LEFT_OVER_SECONDS = 5.0
"""The same for what a job that has ended has left running."""
COMMANDS = {"mnemo": "-m mnemo ", "python": ""}
"""Commands that jobs find on their PATH, whatever is installed: this Python, and Mnemo in it."""
LOG = "{}.log"


@dataclass
class Entry:
    """A job, and what became of it."""

    job: Job
    state: State = "waiting"
    why: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"name": self.job.name, "state": self.state, "why": self.why, "seconds": round(self.seconds, 1)}


class Queue:
    def __init__(self, plan: Plan, folder: Path, *, seconds: float, stop: Stop, say: Callable[[str], None]) -> None:
        """`folder`: of state, logs and archive; `seconds`: until the running job is asked to stop."""
        self._about, self._folder, self._stop, self._say = {"title": plan.title, **machine()}, folder, stop, say
        self._entries = [Entry(job) for job in plan.jobs]
        self._begin = time.monotonic()
        self._deadline = self._begin + seconds
        self._collected = 0.0
        self._told = set[str]()

    def run(self) -> bool:
        """Whether all jobs have succeeded."""
        try:
            self._folder.mkdir(parents=True)
        except FileExistsError:
            raise MnemoError(
                f"{self._folder} exists: name another folder, and with --only the jobs to run again"
            ) from None
        _write_commands(self._folder / "bin")
        self._write()
        try:
            for entry in self._entries:
                if self._stop.signal is not None:
                    break
                if reason := self._reason_to_skip(entry.job):
                    self._end(entry, "skipped", reason)
                else:
                    self._run(entry)
        finally:
            self._write(ended=True)
        return all(entry.state == "done" for entry in self._entries)

    def _reason_to_skip(self, job: Job) -> str:
        states = {entry.job.name: entry.state for entry in self._entries}
        if missing := [name for name in job.after if states.get(name, "done") != "done"]:
            return f"{missing[0]} has not succeeded"
        left = max(0.0, self._deadline - time.monotonic()) / 60
        return f"it needs {job.minutes:g} minutes, {left:.1f} are left" if left < job.minutes else ""

    def _run(self, entry: Entry) -> None:
        entry.state, begin = "running", time.monotonic()
        self._tell(f"{entry.job.name}: started")
        process = self._start(entry.job)
        try:
            self._write()
            while process.poll() is None and time.monotonic() < self._deadline and self._stop.signal is None:
                self._wait()
                entry.seconds = time.monotonic() - begin
            code = process.poll()
            if code is None:
                self._tell(f"{entry.job.name}: {self._reason_to_stop()}; it has {PATIENCE_SECONDS:.0f} s to save")
        finally:
            self._end_group(process)
        if code is not None:
            self._end(entry, "failed" if code else "done", f"exit code {code}" if code else "")
        else:
            self._end(entry, "stopped", self._reason_to_stop())

    def _reason_to_stop(self) -> str:
        return "the time is over" if self._stop.signal is None else "the queue is interrupted"

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        script = "set -e -o pipefail\n" + "\n".join(job.run)
        path = f"{(self._folder / 'bin').resolve()}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        with (self._folder / LOG.format(job.name)).open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def _end(self, entry: Entry, state: State, why: str) -> None:
        entry.state, entry.why = state, why
        self._tell(f"{entry.job.name}: {state}" + (f", {why}" if why else f" in {entry.seconds:.0f} s"))

    def _wait(self) -> None:
        """A moment, and write what is due."""
        time.sleep(POLL_SECONDS)
        if time.monotonic() - self._collected > COLLECT_SECONDS:
            self._write()

    def _end_group(self, process: subprocess.Popen[bytes]) -> None:
        """Ask all processes of a job's group to stop, as a scheduler does; after a while, or if told again, use force.

        The shell ends at once, its commands when they have saved their work. Workers of `mnemo reproduce` have groups
        of their own, and save and end with it.
        """
        patience = PATIENCE_SECONDS if process.poll() is None else LEFT_OVER_SECONDS
        try:
            _signal(process, signal.SIGTERM)
            until = time.monotonic() + patience
            while _signal(process, 0) and time.monotonic() < until and not self._stop.insisted:
                process.poll()
                self._wait()
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()

    def _write_state(self, *, ended: bool = False) -> None:
        left = max(0.0, self._deadline - time.monotonic())
        state = {**self._about, "ended": ended, "seconds_left": round(left)}
        write_json(self._folder / STATE, {**state, "jobs": [entry.to_json() for entry in self._entries]})

    def _write(self, *, ended: bool = False) -> None:
        """Write state and archive; jobs go on if that fails, as on a full disk.

        The state says that the queue has ended only after the archive is complete.
        """
        self._collected = time.monotonic()
        begun = [entry.job for entry in self._entries if entry.state not in ("waiting", "skipped")]
        logs = [self._folder / LOG.format(job.name) for job in begun]
        patterns = [pattern for job in begun for pattern in job.keep]
        try:
            self._write_state()
            left_out = collect(self._folder / COLLECTED, [self._folder / STATE, *logs], patterns)
        except OSError as error:
            left_out = [str(error)]
        for name in left_out:
            if name not in self._told:
                self._told.add(name)
                self._tell(f"not collected: {name}")

        if ended:
            with suppress(OSError):
                self._write_state(ended=True)

    def _tell(self, line: str) -> None:
        minutes, seconds = divmod(round(time.monotonic() - self._begin), 60)
        self._say(f"{minutes:3d}:{seconds:02d} {line}")


def _write_commands(folder: Path) -> None:
    folder.mkdir()
    for name, arguments in COMMANDS.items():
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
        command.chmod(0o755)


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether any process of the group was there to receive it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
