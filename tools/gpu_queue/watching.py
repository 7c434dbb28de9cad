"""Follow a queue from another process: say what happens, and copy its archive."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnemo.errors import MnemoError
from mnemo.files import atomic
from mnemo.files.json_file import load_json
from tools.gpu_queue.collect import COLLECTED, STATE
from tools.gpu_queue.queue import COLLECT_SECONDS, LOG

START_SECONDS = 60.0
"""Until a queue has written its first state: it imports torch and asks for the card before."""
SILENCE_SECONDS = 6 * COLLECT_SECONDS
"""Age of a state from which on the queue may have been killed."""


class Watcher:
    def __init__(self, folder: Path, copies: Path | None, say: Callable[[str], None]) -> None:
        """`folder`: of the queue; `copies`: where the archive is copied to."""
        self._folder, self._copies, self._say = folder, copies, say
        self._shown: dict[str, str] = {}

    def watch(self, seconds: float) -> None:
        """Until the queue ends or is silent, another job fails, or the time is over."""
        until = time.monotonic() + seconds
        state = self._first_state(min(seconds, START_SECONDS))
        self._show(state)
        while not state["ended"] and self._silence() <= SILENCE_SECONDS and time.monotonic() < until:
            time.sleep(min(COLLECT_SECONDS, max(0.0, until - time.monotonic())))
            state = load_json(self._folder / STATE)
            if self._show(state):
                break
        if not state["ended"]:
            self._say_where(state["jobs"])

    def _first_state(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while not (self._folder / STATE).exists():
            if time.monotonic() > until:
                raise MnemoError(f"no queue has begun in {self._folder}")
            time.sleep(min(1.0, seconds))
        return load_json(self._folder / STATE)

    def _show(self, state: dict[str, Any]) -> bool:
        """Say what is new and copy the archive; whether a job has failed since the last time."""
        failed = False
        for job in state["jobs"]:
            if job["state"] not in ("waiting", self._shown.get(job["name"])):
                self._shown[job["name"]] = job["state"]
                self._say(f"{job['name']}: {job['state']}" + (f", {job['why']}" if job["why"] else ""))
                if job["state"] == "failed":
                    failed = True
                    self._say(f"  {self._last_line(job['name'])}")
        if self._copies and (self._folder / COLLECTED).exists():
            self._copies.mkdir(parents=True, exist_ok=True)
            with atomic.new_file(self._copies / COLLECTED) as partial:
                shutil.copyfile(self._folder / COLLECTED, partial)
        return failed

    def _say_where(self, jobs: list[dict[str, Any]]) -> None:
        if (age := self._silence()) > SILENCE_SECONDS:
            self._say(f"no news for {age:.0f} s: the queue may have been killed")
        for job in jobs:
            if job["state"] == "running":
                self._say(f"{job['name']}, {job['seconds']:.0f} s: {self._last_line(job['name'])}")

    def _silence(self) -> float:
        return time.time() - (self._folder / STATE).stat().st_mtime

    def _last_line(self, job: str) -> str:
        log = self._folder / LOG.format(job)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
