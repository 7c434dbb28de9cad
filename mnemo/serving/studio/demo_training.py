"""Train the demo from the page Runs, in a process apart from the server; its runs appear in the list meanwhile."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from mnemo.serving.errors import ApiError
from mnemo.serving.studio.answers import computed

PATH = "/studio/api/demo"
FOLDER = "demo"
"""In the folder of runs, as `mnemo demo` names it."""
LAST_BYTES = 2000
"""End of the output that is searched for the last line."""


class DemoTraining:
    """`command`: trains the demo; the folder for its runs is the last argument."""

    def __init__(self, runs: Path, command: tuple[str, ...] = (sys.executable, "-m", "mnemo", "demo", "--out")) -> None:
        self._folder, self._command = runs / FOLDER, command
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self._lock = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PATH, computed(lambda request: self.state())),
            Route(PATH, computed(self._start), methods=["POST"]),
        ]

    def state(self) -> dict[str, Any]:
        code = None if self._process is None else self._process.poll()
        if self._process is None:
            state = "there" if self._folder.exists() else "absent"
        else:
            state = "training" if code is None else "finished" if code == 0 else "failed"
        return {"state": state, "line": self._last_line(), "folder": str(self._folder)}

    def _start(self, request: Request) -> dict[str, Any]:
        with self._lock:
            if self.state()["state"] in ("there", "training"):
                raise ApiError(409, f"there is a demo in {self._folder} already", code="demo_exists")
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._log = Path(tempfile.mkdtemp(prefix="mnemo-demo-")) / "output.txt"
            with self._log.open("wb") as output:
                command = [*self._command, str(self._folder)]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            atexit.register(self.stop)
        return self.state()

    def stop(self) -> None:
        """End the training, if it goes on, and remove its output."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        if self._log is not None:
            shutil.rmtree(self._log.parent, ignore_errors=True)
            self._log = None

    def _last_line(self) -> str:
        if self._log is None:
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LAST_BYTES))
            text = file.read().decode("utf-8", "replace")
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
