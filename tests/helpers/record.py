"""The result of a test run as a JSON file: commit, machine, versions, counts and failures."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

FORMAT_VERSION = 1
ROOT = Path(__file__).parents[2]


class Record:
    """A pytest plugin that counts outcomes and writes them to `path` at the end."""

    def __init__(self, path: Path, commit: str | None = None) -> None:
        self.path, self.commit = path, commit
        self.counts: Counter[str] = Counter(passed=0, failed=0, skipped=0)
        self.failures: list[str] = []
        self.begin = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test counts once: by its call, or by the step around it that skipped or failed."""
        if report.when == "call" or report.outcome != "passed":
            self._count(report.outcome, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Files that cannot be imported are failures, those that skip as a whole count as one skipped test."""
        if report.outcome != "passed":
            self._count(report.outcome, report.nodeid)

    def _count(self, outcome: str, name: str) -> None:
        self.counts[outcome] += 1
        if outcome == "failed":
            self.failures.append(name)

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.result(), indent=2) + "\n")

    def result(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": self.commit or commit(),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "versions": versions(),
            **self.counts,
            "seconds": round(time.monotonic() - self.begin, 1),
            "failures": self.failures,
        }


def versions() -> dict[str, str | None]:
    triton = None
    if find_spec("triton") is not None:
        import triton as module  # type: ignore[import-not-found]

        triton = module.__version__
    cuda: str | None = torch.version.cuda
    return {"python": platform.python_version(), "torch": torch.__version__, "triton": triton, "cuda": cuda}


def commit() -> str | None:
    """The commit of the working tree, with `-dirty` appended if files differ from it; None without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
