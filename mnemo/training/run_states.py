"""The state of run folders: finished, stopped, being trained or diverged; no weights are loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mnemo.errors import MnemoError
from mnemo.files.json_file import load_json
from mnemo.files.safe_load import is_count, is_finite
from mnemo.memory.own import ImportNeeded
from mnemo.storage import run_folder
from mnemo.storage.checkpoint import Checkpoint, last_whole_checkpoint
from mnemo.storage.run_folder import exported
from mnemo.storage.run_header import (
    BEST,
    METRICS,
    RUNS,
    RunHeader,
    last_written,
    load_header,
    named_runs,
)
from mnemo.training.run_progress import Best, Progress

State = Literal[
    "finished",
    "stopped",
    "being trained",
    "diverged",
    "not trained yet",
    "converted",
    "exported",
    "damaged",
    "needs an import",
]
TAIL_BYTES = 1 << 16
"""The end of metrics.jsonl that is searched for the last line."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    name: str
    path: Path
    state: State
    note: str = ""
    """Why it diverged, or what is damaged."""
    step: int = 0
    """The last step in a checkpoint; while the run is being trained, in its metrics."""
    best: Best | None = None
    num_bytes: int
    """Size of all files."""
    written: float
    """When training wrote last, in seconds since the epoch."""
    header: RunHeader | None = None
    """None if it is damaged."""


def run_states(runs: Path = RUNS) -> list[RunState]:
    """The states of `named_runs`, sorted by the time of writing."""
    return sorted((state_of(path, name) for name, path in named_runs(runs).items()), key=lambda run: run.written)


def state_of(path: Path, name: str) -> RunState:
    state, note, step, header = _state(path)
    return RunState(
        name=name,
        path=path,
        state=state,
        note=note,
        step=step,
        best=_best(path),
        num_bytes=sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink()),
        written=last_written(path),
        header=header,
    )


def _state(path: Path) -> tuple[State, str, int, RunHeader | None]:
    try:
        header = load_header(path)
        export, (last, _) = exported(path), last_whole_checkpoint(path)
        if export is not None:
            return "exported", "", export.step, header
        step = 0 if last is None else last.step
        if run_folder.in_use(path):
            return "being trained", "", max(step, _last_logged_step(path)), header
        if (why := run_folder.divergence(path)) is not None:
            return "diverged", why, step, header
        if last is None:
            return "not trained yet", "", 0, header
        if "cursor" not in last.progress:  # weights of other code, without a place in a text
            return "converted", "", step, header
        return "finished" if _is_finished(last, header) else "stopped", "", step, header
    except ImportNeeded as error:
        return "needs an import", str(error), 0, None
    except MnemoError as error:
        return "damaged", str(error), 0, None


def _is_finished(last: Checkpoint, header: RunHeader) -> bool:
    return Progress.from_json(last.progress, last.path).is_finished(header.recipe.train)


def _best(path: Path) -> Best | None:
    if not (path / BEST).is_file():
        return None
    try:
        data = load_json(path / BEST)
    except MnemoError:
        return None
    step, loss = data.get("step"), data.get("loss")
    return Best(step, loss) if is_count(step) and is_finite(loss) else None


def _last_logged_step(path: Path) -> int:
    """The step of the last complete line of metrics; 0 without one."""
    if not (path / METRICS).is_file():
        return 0
    with (path / METRICS).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            step = json.loads(line).get("step")
        except (ValueError, AttributeError):
            continue
        if is_count(step):
            return step
    return 0
